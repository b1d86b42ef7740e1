// SPDX-License-Identifier: Apache-2.0
// Distances between rows of logits. Exponentials are fp32 (relative error < 3e-7), every sum is double, differences of
// log-probabilities are taken in double: a row against itself gives exactly 0. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace tersekv {

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

}  // namespace tersekv
