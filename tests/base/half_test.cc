// SPDX-License-Identifier: Apache-2.0
#include "src/base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

struct Format {
  int mantissa, min_exponent, max_exponent;
};
constexpr Format kHalf = {10, -14, 15};
constexpr Format kBrain = {7, -126, 127};

// The nearest pattern, ties to even, in double arithmetic. f is no NaN.
uint16_t Nearest(float f, const Format& format) {
  const unsigned sign = std::signbit(f) ? 0x8000u : 0u;
  const double v = std::fabs(static_cast<double>(f));
  if (v == 0) return static_cast<uint16_t>(sign);
  const unsigned infinity = static_cast<unsigned>(format.max_exponent - format.min_exponent + 2) << format.mantissa;
  if (std::isinf(v)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(v), format.min_exponent);
  const double quanta = std::nearbyint(std::ldexp(v, format.mantissa - exponent));
  if (std::ldexp(quanta, exponent - format.mantissa) >= std::ldexp(1.0, format.max_exponent + 1)) {
    return static_cast<uint16_t>(sign | infinity);
  }
  // The leading 1 of `quanta` adds 1 to the exponent field, unless the value is subnormal and has none.
  return static_cast<uint16_t>(sign | ((static_cast<unsigned>(exponent - format.min_exponent) << format.mantissa) +
                                       static_cast<unsigned>(quanta)));
}

double ValueOf(uint16_t pattern, const Format& format) {
  const int fraction = pattern & ((1 << format.mantissa) - 1);
  const int field = (pattern & 0x7fff) >> format.mantissa;
  const double sign = pattern & 0x8000 ? -1 : 1;
  if (field == 0) return sign * std::ldexp(fraction, format.min_exponent - format.mantissa);
  return sign * std::ldexp(fraction + (1 << format.mantissa), field - 1 + format.min_exponent - format.mantissa);
}

void ExpectNearest(float f) {
  ASSERT_EQ(F32ToF16(f), Nearest(f, kHalf)) << std::hexfloat << f;
  ASSERT_EQ(F32ToBF16(f), Nearest(f, kBrain)) << std::hexfloat << f;
}

void ExpectNearestAround(float f) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float v : {f, std::nextafter(f, infinity), std::nextafter(f, -infinity)}) {
    ExpectNearest(v);
    ExpectNearest(-v);
  }
}

TEST(Half, EveryF16PatternRoundTrips) {
  for (uint32_t p = 0; p <= 0xffff; ++p) {
    const uint16_t pattern = static_cast<uint16_t>(p);
    const float value = F16ToF32(pattern);
    if ((p & 0x7c00) == 0x7c00) {
      ASSERT_EQ(std::isnan(value), (p & 0x3ff) != 0) << p;
      ASSERT_EQ(std::signbit(value), (p & 0x8000) != 0) << p;
      const uint32_t quiet = std::isnan(value) ? 0x200u : 0u;  // a NaN keeps its payload and becomes quiet
      ASSERT_EQ(F32ToF16(value), p | quiet);
      ASSERT_FALSE(std::isfinite(value)) << p;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), ValueOf(pattern, kHalf)) << p;
    ASSERT_EQ(std::signbit(value), (p & 0x8000) != 0) << p;
    ASSERT_EQ(F32ToF16(value), p);
  }
}

TEST(Half, EveryBF16PatternRoundTrips) {
  for (uint32_t p = 0; p <= 0xffff; ++p) {
    const uint16_t pattern = static_cast<uint16_t>(p);
    const float value = BF16ToF32(pattern);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), p << 16);
    if ((p & 0x7fff) > 0x7f80) {
      ASSERT_EQ(F32ToBF16(value), 0x7fc0);
      continue;
    }
    if ((p & 0x7fff) < 0x7f80) {
      ASSERT_EQ(static_cast<double>(value), ValueOf(pattern, kBrain)) << p;
    }
    ASSERT_EQ(F32ToBF16(value), p);
  }
}

TEST(Half, TiesBetweenF16NeighboursGoToEven) {
  for (uint32_t p = 0; p < 0x7bff; ++p) {
    const double low = ValueOf(static_cast<uint16_t>(p), kHalf), high = ValueOf(static_cast<uint16_t>(p + 1), kHalf);
    const float middle = static_cast<float>((low + high) / 2);  // exact
    ASSERT_EQ(F32ToF16(middle), p + p % 2) << p;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), p) << p;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 1e30f)), p + 1) << p;
    ASSERT_EQ(F32ToF16(-middle), 0x8000 + p + p % 2) << p;
  }
}

TEST(Half, TiesBetweenBF16NeighboursGoToEven) {
  for (uint32_t p = 0; p < 0x7f80; ++p) {
    const uint32_t middle = (p << 16) + 0x8000;
    ASSERT_EQ(F32ToBF16(std::bit_cast<float>(middle)), p + p % 2) << p;
    ASSERT_EQ(F32ToBF16(std::bit_cast<float>(middle - 1)), p) << p;
    ASSERT_EQ(F32ToBF16(std::bit_cast<float>(middle + 1)), p + 1) << p;
    ASSERT_EQ(F32ToBF16(std::bit_cast<float>(middle | 0x80000000u)), 0x8000 + p + p % 2) << p;
  }
}

TEST(Half, Limits) {
  EXPECT_EQ(F32ToF16(65504.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);  // the tie above the largest goes to infinity
  EXPECT_EQ(F32ToF16(-65520.0f), 0xfc00);
  EXPECT_EQ(F32ToF16(0x1p-24f), 0x0001);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0x0000);
  EXPECT_EQ(F32ToF16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(F32ToF16(0x1.ffcp-15f), 0x0400);  // halfway to the smallest normal
  EXPECT_EQ(F32ToBF16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(F32ToBF16(0x1.fep127f), 0x7f7f);
  EXPECT_EQ(F32ToBF16(std::numeric_limits<float>::denorm_min()), 0x0000);
  for (const float f : {0.0f, 65504.0f, 65520.0f, 0x1p-24f, 0x1p-25f, 0x1p-14f, 0x1.ffcp-15f, 0x1p-126f, 0x1p-149f,
                        0x1p-133f, 0x1.fep127f, std::numeric_limits<float>::max(), 1.0f, 0x1.002p0f, 0x1.01p0f}) {
    ExpectNearestAround(f);
  }
  ExpectNearest(std::numeric_limits<float>::infinity());
  ExpectNearest(-std::numeric_limits<float>::infinity());
}

TEST(Half, NotANumberStaysOne) {
  for (const uint32_t payload : {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0x7f801fffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(payload | sign);
      const uint16_t half = F32ToF16(nan);
      EXPECT_EQ(half & 0x7e00, 0x7e00) << payload;
      EXPECT_EQ(half & 0x8000u, sign >> 16) << payload;
      EXPECT_EQ(half & 0x1ff, (payload >> 13) & 0x1ff) << payload;
      EXPECT_EQ(F32ToBF16(nan), 0x7fc0) << payload;
    }
  }
}

TEST(Half, RandomValuesRoundToNearestEven) {
  reference::Random random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    if (!std::isnan(any)) ExpectNearest(any);
    // In f16's range, its subnormals and overflow included.
    const float near = std::ldexp(static_cast<float>(random.Gaussian()), static_cast<int>(random.Below(44)) - 27);
    ExpectNearest(near);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tersekv
