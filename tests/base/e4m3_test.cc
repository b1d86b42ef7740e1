// SPDX-License-Identifier: Apache-2.0
#include "src/base/e4m3.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

// By the definition of the format; codes 0x7f and 0xff are NaN.
double ValueOf(int code) {
  const int exponent = (code >> 3) & 15, fraction = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// The nearest finite code, ties to the even one.
int Nearest(float f) {
  int best = 0;
  const double v = std::fabs(static_cast<double>(f));
  for (int code = 1; code < 0x7f; ++code) {
    const double gain = std::fabs(v - ValueOf(best)) - std::fabs(v - ValueOf(code));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(f) ? 0x80 : 0);
}

TEST(E4M3, EveryCodeDecodesAndRoundTrips) {
  for (int c = 0; c < 256; ++c) {
    const uint8_t code = static_cast<uint8_t>(c);
    const float value = E4M3ToF32(code);
    ASSERT_EQ(std::signbit(value), (c & 0x80) != 0) << c;
    if ((c & 0x7f) == 0x7f) {
      ASSERT_TRUE(std::isnan(value));
    } else {
      ASSERT_EQ(static_cast<double>(value), ValueOf(c)) << c;
    }
    ASSERT_EQ(F32ToE4M3(value), c);
  }
  EXPECT_EQ(E4M3ToF32(0x7e), kE4M3Max);
  EXPECT_EQ(E4M3ToF32(0x01), kE4M3Min);
  EXPECT_EQ(E4M3ToF32(0x08), 0x1p-6f);  // the smallest normal
}

TEST(E4M3, TiesGoToEven) {
  for (int c = 0; c < 0x7e; ++c) {
    const float middle = static_cast<float>((ValueOf(c) + ValueOf(c + 1)) / 2);  // exact
    ASSERT_EQ(F32ToE4M3(middle), c + c % 2) << c;
    ASSERT_EQ(F32ToE4M3(std::nextafter(middle, 0.0f)), c);
    ASSERT_EQ(F32ToE4M3(std::nextafter(middle, 1e9f)), c + 1);
    ASSERT_EQ(F32ToE4M3(-middle), 0x80 | (c + c % 2));
  }
}

TEST(E4M3, SaturatesAndKeepsSigns) {
  for (const float large : {448.0f, 463.0f, 464.0f, 465.0f, 480.0f, 512.0f, 1e30f, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(F32ToE4M3(large), 0x7e) << large;
    EXPECT_EQ(F32ToE4M3(-large), 0xfe) << large;
  }
  for (const float small : {0.0f, 1e-45f, 0x1p-126f, 1e-20f, 0x1p-10f}) {
    EXPECT_EQ(F32ToE4M3(small), 0) << small;
    EXPECT_EQ(F32ToE4M3(-small), 0x80) << small;
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_EQ(F32ToE4M3(std::bit_cast<float>(nan)), 0x7f);
    EXPECT_EQ(F32ToE4M3(std::bit_cast<float>(nan | 0x80000000u)), 0xff);
  }
}

TEST(E4M3, RandomValuesRoundToNearest) {
  reference::Random random(1);
  for (int i = 0; i < 300'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    const float near = std::ldexp(static_cast<float>(random.Gaussian()), static_cast<int>(random.Below(22)) - 12);
    if (!std::isnan(any)) {
      ASSERT_EQ(F32ToE4M3(any), std::isinf(any) ? 0x7e | (std::signbit(any) ? 0x80 : 0) : Nearest(any)) << any;
    }
    ASSERT_EQ(F32ToE4M3(near), Nearest(near)) << near;
  }
}

}  // namespace
}  // namespace tersekv
