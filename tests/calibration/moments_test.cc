// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/moments.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kDim = 16;
constexpr size_t kRows = 500;

// Means far larger than deviations, as of biased keys.
std::vector<float> BiasedRows() {
  std::vector<float> rows = reference::GaussianRows(3, kRows, kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] += static_cast<float>(i % kDim) * 100;
  return rows;
}

TEST(Moments, EqualTwoPasses) {
  const std::vector<float> rows = BiasedRows();
  Moments moments(kDim);
  for (size_t t = 0; t < kRows; ++t) moments.Add(rows.data() + t * kDim);
  EXPECT_EQ(moments.count(), static_cast<int64_t>(kRows));
  for (size_t c = 0; c < kDim; ++c) {
    double mean = 0, square = 0;
    for (size_t t = 0; t < kRows; ++t) mean += static_cast<double>(rows[t * kDim + c]) / kRows;
    for (size_t t = 0; t < kRows; ++t) {
      const double e = static_cast<double>(rows[t * kDim + c]) - mean;
      square += e * e / kRows;
    }
    EXPECT_NEAR(moments.mean()[c], mean, 1e-10);
    EXPECT_NEAR(moments.variance(c), square, 1e-10);
  }
}

TEST(Moments, MergeEqualsOne) {
  const std::vector<float> rows = BiasedRows();
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{77}, kRows}) {
    Moments all(kDim), a(kDim), b(kDim);
    for (size_t t = 0; t < kRows; ++t) {
      all.Add(rows.data() + t * kDim);
      (t < cut ? a : b).Add(rows.data() + t * kDim);
    }
    a.Merge(b);
    EXPECT_EQ(a.count(), all.count());
    for (size_t c = 0; c < kDim; ++c) {
      EXPECT_NEAR(a.mean()[c], all.mean()[c], 1e-10) << cut;
      EXPECT_NEAR(a.variance(c), all.variance(c), 1e-9) << cut;
    }
  }
}

TEST(Moments, OfNothing) {
  const Moments none(kDim);
  EXPECT_EQ(none.variance(3), 0);
  EXPECT_EQ(none.mean()[3], 0);
}

}  // namespace
}  // namespace tersekv
