// SPDX-License-Identifier: Apache-2.0
// Lists that the bench commands take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tersekv/status.h"

namespace tersekv::cli {

std::vector<std::string> SplitList(const std::string& list);        // at commas, trimmed; "" is no element
Result<std::vector<int64_t>> ParseDepths(const std::string& list);  // "0,4096": tokens, each below 2^30

}  // namespace tersekv::cli
