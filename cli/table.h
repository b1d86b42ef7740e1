// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace tersekv::cli {

// Aligned text: the first row is the head; the columns of `left` are flush left, the others flush right.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& left = {0});

}  // namespace tersekv::cli
