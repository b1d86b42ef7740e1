// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/options.h"

namespace tersekv::cli {

std::vector<std::string> SplitList(const std::string& list) {
  std::vector<std::string> elements;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string element = Trim(std::string_view(list).substr(begin, end - begin));
    if (!element.empty()) elements.push_back(std::move(element));
    begin = end + 1;
  }
  return elements;
}

Result<std::vector<int64_t>> ParseDepths(const std::string& list) {
  std::vector<int64_t> depths;
  for (const std::string& element : SplitList(list)) {
    int64_t depth = 0;
    const auto [end, error] = std::from_chars(element.data(), element.data() + element.size(), depth);
    if (error != std::errc() || end != element.data() + element.size() || depth < 0 || depth >= int64_t{1} << 30) {
      return InvalidArgument(
          fmt::format("'{}' is not a depth: write tokens from 0 to 2^30, e.g. --depths 4096,16384", element));
    }
    depths.push_back(depth);
  }
  if (depths.empty()) return InvalidArgument("no depths: write e.g. --depths 4096,16384");
  return depths;
}

}  // namespace tersekv::cli
