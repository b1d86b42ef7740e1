// SPDX-License-Identifier: Apache-2.0
// What `tersekv eval` measures, as pure functions. Exponentials are fp32 (relative error < 3e-7), every sum is double,
// differences of log-probabilities are taken in double: a row against itself gives exactly 0.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tersekv::cli {

struct LogitRow {
  std::span<const float> logits;  // [vocab]
  double lse = 0;                 // log of the sum of exp(logit)
  int32_t argmax = 0;             // the lowest index on a tie
  bool ok = false;                // at least one finite logit, none NaN or +inf
};
LogitRow AnalyseRow(std::span<const float> logits);

// KL(p_ref || p) in nats.
double KlDivergence(const LogitRow& reference, const LogitRow& row);
// -log p(target) in nats.
double NegLogLikelihood(const LogitRow& row, int32_t target);

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
