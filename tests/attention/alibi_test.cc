// SPDX-License-Identifier: Apache-2.0
// ALiBi slopes as published (Press et al. 2022, section 3 and the authors' get_slopes).
#include <gtest/gtest.h>

#include <cmath>

#include "tersekv/attention.h"

namespace tersekv {
namespace {

TEST(Alibi, EightHeads) {
  const float expected[] = {1.0f / 2, 1.0f / 4, 1.0f / 8, 1.0f / 16, 1.0f / 32, 1.0f / 64, 1.0f / 128, 1.0f / 256};
  for (int h = 0; h < 8; ++h) EXPECT_FLOAT_EQ(AlibiSlope(h, 8, 8.0f), expected[h]) << h;
}

TEST(Alibi, SixteenHeadsStartAtTheRootOfOneHalf) {
  for (int h = 0; h < 16; ++h) {  // powers of a rounded root: a few ulp
    const double expected = std::pow(2.0, -0.5 * (h + 1));
    EXPECT_NEAR(static_cast<double>(AlibiSlope(h, 16, 8.0f)), expected, 1e-6 * expected) << h;
  }
}

// get_slopes(12) of the authors: the slopes of 8 heads, then every second one of 16 heads.
TEST(Alibi, TwelveHeads) {
  const double expected[] = {0.5,       0.25,       0.125,      0.0625,     0.03125,    0.015625,
                             0.0078125, 0.00390625, 0.70710678, 0.35355339, 0.17677670, 0.088388348};
  for (int h = 0; h < 12; ++h) EXPECT_NEAR(static_cast<double>(AlibiSlope(h, 12, 8.0f)), expected[h], 2e-7) << h;
}

TEST(Alibi, OneHeadAndAnotherLargestBias) {
  EXPECT_FLOAT_EQ(AlibiSlope(0, 1, 8.0f), 1.0f / 256);
  EXPECT_FLOAT_EQ(AlibiSlope(0, 4, 4.0f), 0.5f);
  EXPECT_FLOAT_EQ(AlibiSlope(3, 4, 4.0f), 1.0f / 16);
}

}  // namespace
}  // namespace tersekv
