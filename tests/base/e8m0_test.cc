// SPDX-License-Identifier: Apache-2.0
#include "src/base/e8m0.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "src/base/abs_max.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

TEST(E8M0, EveryCodeDecodesAndRoundTrips) {
  for (int c = 0; c < 255; ++c) {
    const float value = E8M0ToF32(static_cast<uint8_t>(c));
    ASSERT_EQ(static_cast<double>(value), std::ldexp(1.0, c - 127)) << c;
    ASSERT_EQ(E8M0FromExponent(FloorLog2(value)), c);
  }
  EXPECT_TRUE(std::isnan(E8M0ToF32(255)));
}

TEST(E8M0, Saturates) {
  EXPECT_EQ(E8M0FromExponent(-128), 0);
  EXPECT_EQ(E8M0FromExponent(-1000), 0);
  EXPECT_EQ(E8M0FromExponent(127), 254);
  EXPECT_EQ(E8M0FromExponent(128), 254);
}

TEST(E8M0, FloorLog2IsExact) {
  for (int e = -149; e <= 127; ++e) {
    const float power = std::ldexp(1.0f, e);
    EXPECT_EQ(FloorLog2(power), e);
    EXPECT_EQ(FloorLog2(-power), e);
    if (e > -149) {
      EXPECT_EQ(FloorLog2(std::nextafter(power, 0.0f)), e - 1);
    }
  }
  EXPECT_EQ(FloorLog2(0.0f), -150);
  EXPECT_EQ(FloorLog2(-0.0f), -150);
  reference::Random random(1);
  for (int i = 0; i < 300'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    if (std::isfinite(any) && any != 0) {
      ASSERT_EQ(FloorLog2(any), std::ilogb(any)) << any;
    }
  }
}

TEST(AbsMax, IsTheLargestMagnitude) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(AbsMax(nullptr, 0), 0.0f);
  const float values[] = {-0.0f, 1e-45f, -3.0f, 2.5f, -infinity};
  EXPECT_FALSE(std::signbit(AbsMax(values, 1)));
  EXPECT_EQ(AbsMax(values, 2), 1e-45f);
  EXPECT_EQ(AbsMax(values, 4), 3.0f);
  EXPECT_EQ(AbsMax(values, 5), infinity);
  const std::vector<float> rows = reference::GaussianRows(1, 1, 1000);
  float largest = 0;
  for (int n = 1; n <= 1000; ++n) {
    largest = std::fmax(largest, std::fabs(rows[static_cast<size_t>(n) - 1]));
    ASSERT_EQ(AbsMax(rows.data(), n), largest);
  }
}

}  // namespace
}  // namespace tersekv
