// SPDX-License-Identifier: Apache-2.0
// E2M1: the 4-bit float of OCP MX, {0, .5, 1, 1.5, 2, 3, 4, 6} and a sign in bit 3. Branchless, so that loops over them
// vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace tersekv {

// The upper four bits of code don't count.
inline float E2M1ToF32(uint8_t code) {
  const int32_t magnitude = code & 7;
  // The exponent's bias goes from 1 to 127. A subnormal, 0.f, is made as 1.f less 1.
  const int32_t subnormal = -static_cast<int32_t>(magnitude < 2);
  const int32_t pattern = (magnitude << 22) + (126 << 23) + (subnormal & (1 << 23));
  const float value = std::bit_cast<float>(pattern) - std::bit_cast<float>(subnormal & 0x3f800000);
  return std::bit_cast<float>(std::bit_cast<int32_t>(value) | static_cast<int32_t>((code & 8u) << 28));
}

// Rounds to the nearest, ties to the even code, and saturates at 6. f is no NaN.
inline uint8_t F32ToE2M1(float f) {
  const int32_t bits = std::bit_cast<int32_t>(f);
  const float v = std::bit_cast<float>(bits & 0x7fffffff);
  const int32_t magnitude = static_cast<int32_t>(v > 0.25f) + static_cast<int32_t>(v >= 0.75f) +
                            static_cast<int32_t>(v > 1.25f) + static_cast<int32_t>(v >= 1.75f) +
                            static_cast<int32_t>(v > 2.5f) + static_cast<int32_t>(v >= 3.5f) +
                            static_cast<int32_t>(v > 5.0f);
  return static_cast<uint8_t>(magnitude | ((bits >> 28) & 8));
}

}  // namespace tersekv
