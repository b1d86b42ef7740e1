// SPDX-License-Identifier: Apache-2.0
// Text in and out of a model's vocabulary.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hosts/llama/model.h"

namespace tersekv::llama {

Result<std::vector<int32_t>> TokenizeText(const Model& model, std::string_view text, bool add_special,
                                          bool parse_special);
std::string PieceOf(const Model& model, int32_t token);
Result<std::string> ChatPrompt(const Model& model, std::span<const ChatMessage> messages);

}  // namespace tersekv::llama
