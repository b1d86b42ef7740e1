// SPDX-License-Identifier: Apache-2.0
#include "src/base/e2m1.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr double kValues[] = {0, .5, 1, 1.5, 2, 3, 4, 6};

int Nearest(float f) {
  int best = 0;
  const double v = std::fmin(std::fabs(static_cast<double>(f)), 6.0);
  for (int code = 1; code < 8; ++code) {
    const double gain = std::fabs(v - kValues[best]) - std::fabs(v - kValues[code]);
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(f) ? 8 : 0);
}

TEST(E2M1, EveryCodeDecodesAndRoundTrips) {
  for (int c = 0; c < 256; ++c) {
    const float value = E2M1ToF32(static_cast<uint8_t>(c));
    ASSERT_EQ(std::fabs(value), kValues[c & 7]) << c;
    ASSERT_EQ(std::signbit(value), (c & 8) != 0) << c;
    ASSERT_EQ(F32ToE2M1(value), c & 15) << c;
  }
}

TEST(E2M1, TiesGoToEven) {
  const struct {
    float value;
    int code;
  } ties[] = {{.25f, 0}, {.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4}, {3.5f, 6}, {5.0f, 6}};
  int lower = 0;
  for (const auto& tie : ties) {
    EXPECT_EQ(F32ToE2M1(tie.value), tie.code) << tie.value;
    EXPECT_EQ(F32ToE2M1(-tie.value), 8 | tie.code) << tie.value;
    EXPECT_EQ(F32ToE2M1(std::nextafter(tie.value, 0.0f)), lower) << tie.value;
    EXPECT_EQ(F32ToE2M1(std::nextafter(tie.value, 9.0f)), ++lower) << tie.value;
  }
}

TEST(E2M1, SaturatesAndKeepsSigns) {
  for (const float large : {6.0f, 6.5f, 7.0f, 8.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(F32ToE2M1(large), 7) << large;
    EXPECT_EQ(F32ToE2M1(-large), 15) << large;
  }
  for (const float small : {0.0f, 1e-45f, 1e-20f}) {
    EXPECT_EQ(F32ToE2M1(small), 0) << small;
    EXPECT_EQ(F32ToE2M1(-small), 8) << small;
  }
}

TEST(E2M1, RandomValuesRoundToNearest) {
  reference::Random random(1);
  for (int i = 0; i < 300'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    const float near = static_cast<float>(random.Gaussian() * 3);
    if (std::isfinite(any)) {
      ASSERT_EQ(F32ToE2M1(any), Nearest(any)) << any;
    }
    ASSERT_EQ(F32ToE2M1(near), Nearest(near)) << near;
  }
}

}  // namespace
}  // namespace tersekv
