// SPDX-License-Identifier: Apache-2.0
#include "cli/sampler.h"

#include <algorithm>
#include <cmath>

namespace tersekv::cli {

int32_t Sampler::Sample(std::span<const float> logits) {
  const auto better = [](const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  candidates_.clear();
  const bool greedy = options_.temp <= 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) continue;
    const std::pair<float, int32_t> candidate(logits[i], static_cast<int32_t>(i));
    if (!greedy || candidates_.empty()) {
      candidates_.push_back(candidate);
    } else if (better(candidate, candidates_.front())) {
      candidates_.front() = candidate;
    }
  }
  if (candidates_.empty()) return -1;
  if (greedy) return candidates_.front().second;

  size_t keep = candidates_.size();
  if (options_.top_k > 0) keep = std::min(keep, static_cast<size_t>(options_.top_k));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(keep), candidates_.end(), better);

  const double best = candidates_.front().first;
  const auto weight = [&](size_t i) { return std::exp((candidates_[i].first - best) / options_.temp); };
  double total = 0;
  for (size_t i = 0; i < keep; ++i) total += weight(i);
  // The smallest set of best tokens whose share reaches top_p.
  double kept = 0;
  for (size_t i = 0; i < keep; ++i) {
    kept += weight(i);
    if (kept >= options_.top_p * total) {
      keep = i + 1;
      break;
    }
  }
  double at = static_cast<double>(random_() >> 11) * 0x1p-53 * kept;
  for (size_t i = 0; i < keep; ++i) {
    at -= weight(i);
    if (at < 0) return candidates_[i].second;
  }
  return candidates_[keep - 1].second;
}

}  // namespace tersekv::cli
