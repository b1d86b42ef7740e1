// SPDX-License-Identifier: Apache-2.0
#include "tersekv/logits.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tersekv {
namespace {

constexpr int kLanes = 8;          // partial sums, so that loops vectorise with a fixed order of additions
constexpr int kBlock = 512;        // values whose exponentials are kept at a time
constexpr float kLowest = -1e30f;  // stands for -inf, so that no difference becomes NaN

float Finite(float x) { return x < kLowest ? kLowest : x; }

// exp(x) for x up to about 0 after Cephes expf: plain arithmetic that compilers vectorise; 0 becomes exactly 1.
inline float ExpNegative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer that sits in the low bits
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
}

float MaxOf(std::span<const float> x) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, kLowest);
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = lanes[j] < x[i + j] ? x[i + j] : lanes[j];
  }
  for (; i < x.size(); ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

void AddLanes(const float* x, int count, double* lanes) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(x[i + j]);
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(x[i]);
}

double SumLanes(const double* lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace

LogitRow AnalyseRow(std::span<const float> logits) {
  LogitRow row;
  row.logits = logits;
  const float* x = logits.data();
  const size_t n = logits.size();
  int bad = 0;  // NaN
  for (size_t i = 0; i < n; ++i) bad |= x[i] != x[i];
  const float best = MaxOf(logits);
  if (n == 0 || bad != 0 || best <= kLowest || !std::isfinite(best)) return row;
  row.argmax = static_cast<int32_t>(std::find(x, x + n, best) - x);

  float e[kBlock];
  double lanes[kLanes] = {};
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const int count = static_cast<int>(std::min<size_t>(kBlock, n - begin));
    for (int i = 0; i < count; ++i) e[i] = ExpNegative(x[begin + i] - best);
    AddLanes(e, count, lanes);
  }
  row.lse = static_cast<double>(best) + std::log(SumLanes(lanes));
  row.ok = true;
  return row;
}

// Sum of p f(d) with d = log p - log q and f(d) = d - 1 + exp(-d), which is the sum of p d because p and q both add up
// to 1. No term is negative and an error of d counts only multiplied by d, so that a KL of 1e-9 still has its digits.
double KlDivergence(const LogitRow& reference, const LogitRow& row) {
  const float* x = reference.logits.data();
  const float* y = row.logits.data();
  const size_t n = std::min(reference.logits.size(), row.logits.size());
  float terms[kBlock];
  double lanes[kLanes] = {};
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const int count = static_cast<int>(std::min<size_t>(kBlock, n - begin));
    for (int i = 0; i < count; ++i) {
      const double log_p = static_cast<double>(Finite(x[begin + i])) - reference.lse;
      const double log_q = static_cast<double>(Finite(y[begin + i])) - row.lse;
      const float p = ExpNegative(static_cast<float>(log_p)), q = ExpNegative(static_cast<float>(log_q));
      const auto d = static_cast<float>(log_p - log_q);
      float f = 1.0f / 40320 - d * (1.0f / 362880);
      f = 1.0f / 5040 - d * f;
      f = 1.0f / 720 - d * f;
      f = 1.0f / 120 - d * f;
      f = 1.0f / 24 - d * f;
      f = 1.0f / 6 - d * f;
      f = d * d * (0.5f - d * f);
      const float near = p * f, far = p * (d - 1.0f) + q;
      terms[i] = std::fabs(d) < 0.5f ? near : far;
    }
    AddLanes(terms, count, lanes);
  }
  return SumLanes(lanes);
}

double NegLogLikelihood(const LogitRow& row, int32_t target) {
  return row.lse - static_cast<double>(row.logits[static_cast<size_t>(target)]);
}

}  // namespace tersekv
