// SPDX-License-Identifier: Apache-2.0
// Drafts without a second model: what followed the last time that the newest tokens were seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tersekv::cli {

class PromptLookup {
 public:
  void Add(int32_t token);
  // Up to `most` tokens that may come next: those after the latest earlier place of the newest three tokens, else of
  // the newest two; empty when there is none. A text that repeats itself is continued around its own end.
  std::vector<int32_t> Draft(int most) const;

 private:
  std::vector<int32_t> tokens_;
  std::map<std::vector<int32_t>, size_t> next_;  // n-gram: where the token after it is
};

}  // namespace tersekv::cli
