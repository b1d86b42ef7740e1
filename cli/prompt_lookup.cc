// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_lookup.h"

namespace tersekv::cli {
namespace {

constexpr size_t kLongest = 3, kShortest = 2;

}  // namespace

void PromptLookup::Add(int32_t token) {
  for (size_t n = kShortest; n <= kLongest && n <= tokens_.size(); ++n) {
    next_[{tokens_.end() - static_cast<ptrdiff_t>(n), tokens_.end()}] = tokens_.size();
  }
  tokens_.push_back(token);
}

std::vector<int32_t> PromptLookup::Draft(int most) const {
  std::vector<int32_t> draft;
  if (most <= 0) return draft;
  for (size_t n = kLongest; n >= kShortest; --n) {
    if (n > tokens_.size()) continue;
    const auto found = next_.find({tokens_.end() - static_cast<ptrdiff_t>(n), tokens_.end()});
    if (found == next_.end()) continue;
    for (size_t i = found->second; draft.size() < static_cast<size_t>(most); ++i) {
      draft.push_back(i < tokens_.size() ? tokens_[i] : draft[i - tokens_.size()]);
    }
    break;
  }
  return draft;
}

}  // namespace tersekv::cli
