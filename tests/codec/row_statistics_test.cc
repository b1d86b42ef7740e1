// SPDX-License-Identifier: Apache-2.0
#include "src/codec/row_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

struct Stats {
  std::vector<float> mean, scale, inv_scale;
};

Stats Of(const std::vector<float>& rows, int d) {
  const size_t n = rows.size() / static_cast<size_t>(d);
  Stats stats;
  for (auto* v : {&stats.mean, &stats.scale, &stats.inv_scale}) v->resize(static_cast<size_t>(d));
  RowMean(rows.data(), n, d, stats.mean.data());
  RowScale(rows.data(), n, d, stats.mean.data(), stats.scale.data(), stats.inv_scale.data());
  return stats;
}

double GeometricMean(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += std::log(static_cast<double>(x));
  return std::exp(sum / static_cast<double>(v.size()));
}

// Channels of very different spread and offset.
std::vector<float> Rows(uint64_t seed, size_t n, int d) {
  std::vector<float> rows = reference::GaussianRows(seed, n, d);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t c = i % static_cast<size_t>(d);
    rows[i] = rows[i] * std::ldexp(1.0f, static_cast<int>(c % 7) - 3) + static_cast<float>(c % 5) * 20.0f;
  }
  return rows;
}

TEST(RowStatistics, EqualThePlainOnes) {
  for (const int dim : {32, 64, 80, 128, 512}) {
    const size_t n = kStatsTokens, d = static_cast<size_t>(dim);
    const std::vector<float> rows = Rows(static_cast<uint64_t>(dim), n, dim);
    const Stats stats = Of(rows, dim);
    std::vector<double> root(d);
    double product = 0;
    for (size_t c = 0; c < d; ++c) {
      double sum = 0, square = 0;
      for (size_t t = 0; t < n; ++t) sum += static_cast<double>(rows[t * d + c]);
      ASSERT_EQ(stats.mean[c], static_cast<float>(sum / static_cast<double>(n))) << c;  // order and rounding are fixed
      for (size_t t = 0; t < n; ++t) {
        square += std::pow(static_cast<double>(rows[t * d + c]) - static_cast<double>(stats.mean[c]), 2);
      }
      root[c] = std::pow(square / static_cast<double>(n), 0.25);  // sqrt of the standard deviation
      product += std::log(root[c]) / dim;
    }
    for (size_t c = 0; c < d; ++c) {
      ASSERT_NEAR(static_cast<double>(stats.scale[c]) / (root[c] / std::exp(product)), 1, 2e-7) << c;
      ASSERT_EQ(stats.inv_scale[c], 1.0f / stats.scale[c]);
    }
    EXPECT_NEAR(GeometricMean(stats.scale), 1, 1e-6);
  }
}

TEST(RowStatistics, ByHand) {
  // channel 0: 1 3 1 3, standard deviation 1; channel 1: 0 32 0 32, standard deviation 16.
  const Stats stats = Of({1, 0, 3, 32, 1, 0, 3, 32}, 2);
  EXPECT_EQ(stats.mean, std::vector<float>({2, 16}));
  EXPECT_FLOAT_EQ(stats.scale[0], 1 / std::sqrt(4.0f));  // roots are 1 and 4, their geometric mean 2
  EXPECT_FLOAT_EQ(stats.scale[1], 4 / std::sqrt(4.0f));
}

TEST(RowStatistics, SumsRunInFp64InTokenOrder) {
  EXPECT_EQ(Of({0x1p30f, 1, -0x1p30f}, 1).mean[0], static_cast<float>(1.0 / 3));  // lost in fp32
  EXPECT_EQ(Of({0x1p60f, 1, -0x1p60f}, 1).mean[0], 0.0f);                         // lost in fp64, in this order only
  EXPECT_EQ(Of({0x1p60f, -0x1p60f, 1}, 1).mean[0], static_cast<float>(1.0 / 3));
}

TEST(RowStatistics, ScaleHasAFloor) {
  constexpr int kDim = 32;
  std::vector<float> rows = reference::GaussianRows(4, kStatsTokens, kDim);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % kDim == 3) rows[i] = 5.0f;      // never moves
    if (i % kDim == 7) rows[i] *= 1e-5f;    // the root of its deviation is 3e-4 of the largest: under the floor
    if (i % kDim == 9) rows[i] *= 1e-3f;    // 3e-3: above the floor
    if (i % kDim == 11) rows[i] *= 100.0f;  // the largest
  }
  const Stats stats = Of(rows, kDim);
  const double largest = static_cast<double>(*std::max_element(stats.scale.begin(), stats.scale.end()));
  EXPECT_EQ(largest, static_cast<double>(stats.scale[11]));
  EXPECT_NEAR(static_cast<double>(stats.scale[3]) / largest, 1e-3, 1e-9);
  EXPECT_NEAR(static_cast<double>(stats.scale[7]) / largest, 1e-3, 1e-9);
  EXPECT_NEAR(static_cast<double>(stats.scale[9]) / largest, 3.2e-3, 3e-4);
  EXPECT_GT(static_cast<double>(stats.scale[0]) / largest, 0.09);
  EXPECT_NEAR(GeometricMean(stats.scale), 1, 1e-6);  // normalised after the floor
}

TEST(RowStatistics, EqualRowsHaveScaleOne) {
  for (const size_t n : {1, 2, 128}) {
    std::vector<float> rows;
    for (size_t t = 0; t < n; ++t) rows.insert(rows.end(), {1.5f, -2.0f, 0.0f, 1e20f});
    const Stats stats = Of(rows, 4);
    EXPECT_EQ(stats.mean, std::vector<float>({1.5f, -2.0f, 0.0f, 1e20f}));
    EXPECT_EQ(stats.scale, std::vector<float>(4, 1.0f));
    EXPECT_EQ(stats.inv_scale, std::vector<float>(4, 1.0f));
  }
}

TEST(RowStatistics, ScaleFollowsTheRowsLinearly) {
  // All rows times 2^10: means grow with them, scales stay since they are normalised.
  std::vector<float> rows = Rows(5, kStatsTokens, 64);
  const Stats before = Of(rows, 64);
  for (float& v : rows) v *= 1024.0f;
  const Stats after = Of(rows, 64);
  for (size_t c = 0; c < 64; ++c) {
    EXPECT_EQ(after.mean[c], before.mean[c] * 1024.0f);
    EXPECT_NEAR(after.scale[c], before.scale[c], 1e-6 * static_cast<double>(before.scale[c]));
  }
}

TEST(SharedScale, IsAPowerOfTwoThatLeavesRoom) {
  EXPECT_EQ(SharedScaleOfPeak(0), 1);
  EXPECT_EQ(SharedScaleOfPeak(224), 2);  // the peak lies in [112, 224) of the scale
  EXPECT_EQ(SharedScaleOfPeak(std::nextafter(224.0f, 0.0f)), 1);
  EXPECT_EQ(SharedScaleOfPeak(112), 1);
  EXPECT_EQ(SharedScaleOfPeak(std::nextafter(112.0f, 0.0f)), 0.5f);
  EXPECT_EQ(SharedScaleOfPeak(1e-30f), 0x1p-60f);
  EXPECT_EQ(SharedScaleOfPeak(3e38f), 0x1p60f);
  EXPECT_EQ(SharedScaleOfPeak(INFINITY), 0x1p60f);
  std::vector<float> scale = {1, 3}, inverse = {1, 1.0f / 3};
  ApplySharedScale(0.25f, 2, scale.data(), inverse.data());
  EXPECT_EQ(scale, std::vector<float>({0.25f, 0.75f}));
  EXPECT_EQ(inverse, std::vector<float>({4, 4.0f / 3}));
}

TEST(SharedScale, PeaksOfRowsAndOfMoments) {
  const RotationOp none(RotationKind::kNone, 0, 0, 0, false, 32), h1(RotationKind::kHadamard, 0, 0, 0, false, 32);
  std::vector<float> rows(64, 0.0f), row(32), scratch(32);
  rows[5] = -8, rows[32 + 7] = 6;
  std::vector<float> mean(32, 0.0f), inverse(32, 1.0f), variance(32, 0.0f);
  mean[7] = -4, inverse[7] = 2, variance[3] = 9;
  HeadCodec codec;
  codec.d = 32;
  codec.rotation = &none;
  EXPECT_EQ(RowPeak(codec, rows.data(), 2, row.data(), scratch.data()), 8);
  codec.mean = mean.data();
  codec.inv_scale = inverse.data();
  EXPECT_EQ(RowPeak(codec, rows.data(), 2, row.data(), scratch.data()), 20);
  codec.mean = codec.inv_scale = nullptr;
  codec.rotation = &h1;
  EXPECT_NEAR(RowPeak(codec, rows.data(), 1, row.data(), scratch.data()), 8 / std::sqrt(32.0f), 1e-6f);
  EXPECT_EQ(MomentPeak(nullptr, variance.data(), nullptr, 32, false), 18);  // 6 deviations of 3
  EXPECT_EQ(MomentPeak(mean.data(), variance.data(), inverse.data(), 32, false), 18);
  variance[3] = 1;
  EXPECT_EQ(MomentPeak(mean.data(), variance.data(), inverse.data(), 32, false), 8);
  EXPECT_NEAR(MomentPeak(mean.data(), variance.data(), inverse.data(), 32, true), std::sqrt(65.0f), 1e-6f);
}

}  // namespace
}  // namespace tersekv
