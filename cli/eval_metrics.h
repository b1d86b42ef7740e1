// SPDX-License-Identifier: Apache-2.0
// What `tersekv eval` makes of its logits, as pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tersekv/logits.h"

namespace tersekv::cli {

struct TokenScore {
  double kl = 0, nll = 0;
  bool agree = true;  // same argmax as the reference
};

struct Summary {
  double kl_mean = 0, kl_median = 0, kl_p99 = 0, kl_max = 0;
  double ppl = 0;                 // exp(mean nll)
  double top1 = 0;                // share of tokens that agree
  int64_t first_divergence = -1;  // index of the first token that does not; -1 when all do
};
Summary Summarize(const std::vector<TokenScore>& scores);

// q-quantile of sorted values, linear between neighbours.
double Quantile(const std::vector<double>& sorted, double q);

// Calls work(i) for i in [0, n) on up to `threads` threads.
void ParallelFor(int n, int threads, const std::function<void(int)>& work);

}  // namespace tersekv::cli
