// SPDX-License-Identifier: Apache-2.0
// What a rotation leaves for the Lloyd-Max levels: distortion of one vector, |x| = 1, by rotation and input.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "src/codec/lloyd_max.h"
#include "src/transform/rotation.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

double LevelError(const LevelTable& table, double u) {
  size_t code = 0;
  while (code + 1 < static_cast<size_t>(table.count) && u > static_cast<double>(table.threshold[code])) ++code;
  return std::pow(u - static_cast<double>(table.step) * table.level[code], 2);
}

// Squared error of unit-variance levels, relative to |x|^2. x: [d], destroyed.
double RowDistortion(const RotationOp& op, const LevelTable& table, std::vector<float> x) {
  double power = 0, error = 0;
  for (const float v : x) power += static_cast<double>(v) * static_cast<double>(v);
  std::vector<float> scratch(x.size());
  op.Apply(x.data(), scratch.data());
  const double unit = std::sqrt(power / static_cast<double>(x.size()));
  for (const float v : x) error += LevelError(table, static_cast<double>(v) / unit);
  return error / static_cast<double>(x.size());
}

// One round maps one channel to +-1 everywhere, which no set of levels is made for; two map it to sums of d signs over
// sqrt(d), nearly Gaussian. The expectation over seeds is exact: a binomial distribution. One seed is off by 14, 22
// and 34% (standard deviation, 2 to 4 bits), so that .126, .041 and .0112, published of few seeds, are no
// contradiction.
TEST(RotationDistortion, OneHotRowsNeedTwoRounds) {
  constexpr int kDim = 128, kSeeds = 2000;
  const double few_seeds[] = {.126, .041, .0112}, spread[] = {.14, .22, .34};
  for (const int bits : {2, 3, 4}) {
    const LevelTable& table = LevelsOf(bits);
    double first = 0, second = 0, expected = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      std::vector<float> x(kDim);
      x[static_cast<size_t>(seed * 37 % kDim)] = 1;
      const uint64_t s = static_cast<uint64_t>(seed);
      first += RowDistortion(RotationOp(RotationKind::kHadamard, s, 0, 0, false, kDim), table, x) / kSeeds;
      second += RowDistortion(RotationOp(RotationKind::kHadamard2, s, 0, 0, false, kDim), table, x) / kSeeds;
    }
    for (int k = 0; k <= kDim; ++k) {
      const double log_weight =
          std::lgamma(kDim + 1) - std::lgamma(k + 1) - std::lgamma(kDim - k + 1) - kDim * std::log(2.0);
      expected += std::exp(log_weight) * LevelError(table, (2 * k - kDim) / std::sqrt(kDim));
    }
    RecordProperty("h1_" + std::to_string(bits), std::to_string(first));
    RecordProperty("h2_" + std::to_string(bits), std::to_string(second));
    EXPECT_NEAR(first, LevelError(table, 1), 1e-5) << bits;
    EXPECT_NEAR(second / expected, 1, 0.05) << bits;
    EXPECT_NEAR(second / few_seeds[bits - 2], 1, spread[bits - 2]) << bits;
  }
}

// Every order is as good as a power of two: Gaussian rows give the Lloyd-Max distortion of their d. Published at
// d = 80: .115, .034, .0092.
TEST(RotationDistortion, GaussianRowsForEveryOrder) {
  const double gaussian[] = {.1174818, .03454776, .009501008}, at_128[] = {.1160001, .03396593, .009314788};
  for (const int dim : {64, 80, 96, 112, 128, 160, 192, 256, 512, 576}) {
    const size_t d = static_cast<size_t>(dim), n = 250'000 / d;
    const std::vector<float> rows = reference::GaussianRows(d, n, dim);
    for (const RotationKind kind : {RotationKind::kHadamard, RotationKind::kHadamard2}) {
      const RotationOp op(kind, 1, 0, 0, false, dim);
      for (const int bits : {2, 3, 4}) {
        double sum = 0;
        for (size_t i = 0; i < n; ++i) {
          sum += RowDistortion(op, LevelsOf(bits), std::vector<float>(&rows[i * d], &rows[i * d] + d));
        }
        const size_t b = static_cast<size_t>(bits) - 2;
        const double expected = gaussian[b] + (at_128[b] - gaussian[b]) * 128 / dim;  // linear in 1 / d
        EXPECT_NEAR(sum / static_cast<double>(n) / expected, 1, 0.02) << dim << " " << bits;
        RecordProperty("D_" + std::to_string(dim) + "_" + std::to_string(bits),
                       std::to_string(sum / static_cast<double>(n)));
      }
    }
  }
}

}  // namespace
}  // namespace tersekv
