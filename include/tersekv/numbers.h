// SPDX-License-Identifier: Apache-2.0
// Numbers that people write: in options, variables of the environment, lists. They mean the same in every locale.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tersekv/status.h"

namespace tersekv {

// The whole text as one decimal number, "4096" or "-3"; nothing when there is more, less, or it is out of range.
std::optional<int64_t> ParseWhole(std::string_view text);
// "3.5" or "1e3"; finite.
std::optional<double> ParseReal(std::string_view text);
// Bytes: "64M", "1.5GiB", "512", rounded down; K, M, G and T are powers of 1024, in either case, with or without "B" or
// "iB". At least one byte. kInvalidArgument names the text.
Result<size_t> ParseBytes(std::string_view text);

}  // namespace tersekv
