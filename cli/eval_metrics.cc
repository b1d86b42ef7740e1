// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_metrics.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace tersekv::cli {
double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Summary Summarize(const std::vector<TokenScore>& scores) {
  Summary summary;
  if (scores.empty()) return summary;
  std::vector<double> kl;
  kl.reserve(scores.size());
  double kl_sum = 0, nll_sum = 0;
  int64_t agree = 0;
  for (const TokenScore& score : scores) {
    if (!score.agree && summary.first_divergence < 0) {
      summary.first_divergence = static_cast<int64_t>(kl.size());
    }
    kl.push_back(score.kl);
    kl_sum += score.kl;
    nll_sum += score.nll;
    agree += score.agree;
  }
  std::sort(kl.begin(), kl.end());
  const auto n = static_cast<double>(scores.size());
  summary.kl_mean = kl_sum / n;
  summary.kl_median = Quantile(kl, 0.5);
  summary.kl_p99 = Quantile(kl, 0.99);
  summary.kl_max = kl.back();
  summary.ppl = std::exp(nll_sum / n);
  summary.top1 = static_cast<double>(agree) / n;
  return summary;
}

void ParallelFor(int n, int threads, const std::function<void(int)>& work) {
  std::atomic<int> next = 0;
  const auto loop = [&] {
    for (int i = next++; i < n; i = next++) work(i);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < std::min(threads, n); ++t) others.emplace_back(loop);
  loop();
  for (std::thread& other : others) other.join();
}

}  // namespace tersekv::cli
