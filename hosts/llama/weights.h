// SPDX-License-Identifier: Apache-2.0
// What a GGUF file itself says, beside what the engine makes of it.
#pragma once

#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv::llama {

// 16 hex digits: CRC-64 over the file's size and whole head (metadata, tokenizer, names, shapes and types of tensors),
// small tensors whole and 64 KiB of each large one. Of a model in several files: those of the first.
Result<std::string> FingerprintFile(const std::string& path);

bool HasTensor(const std::string& path, const std::string& name);

// As CalibrationOptions::output_square, from the output projections of the layers; `numbers`: the model's layer number
// of each KV layer. Empty where a projection is missing, has another shape or a type that cannot be read.
std::vector<std::vector<float>> ReadOutputSquares(const std::string& path, const std::vector<LayerShape>& layers,
                                                  const std::vector<int>& numbers);

}  // namespace tersekv::llama
