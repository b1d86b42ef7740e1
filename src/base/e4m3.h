// SPDX-License-Identifier: Apache-2.0
// E4M3 (fn): the 8-bit float of OCP OFP8 with bias 7, no infinities and one NaN a sign, S.1111.111. Branchless, so that
// loops over them vectorise.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tersekv {

inline constexpr float kE4M3Max = 448.0f;
inline constexpr float kE4M3Min = 0x1p-9f;  // the smallest subnormal

inline float E4M3ToF32(uint8_t code) {
  const int32_t magnitude = code & 0x7f;
  // The exponent's bias goes from 7 to 127. A subnormal, 0.f * 2^-6, is made as 1.f * 2^-6 less 2^-6.
  const int32_t subnormal = -static_cast<int32_t>(magnitude < 8);
  const int32_t pattern = (magnitude << 20) + (120 << 23) + (subnormal & (1 << 23));
  const float finite = std::bit_cast<float>(pattern) - std::bit_cast<float>(subnormal & 0x3c800000);
  const int32_t nan = -static_cast<int32_t>(magnitude == 0x7f) & 0x7fc00000;
  return std::bit_cast<float>(std::bit_cast<int32_t>(finite) | nan | static_cast<int32_t>((code & 0x80u) << 24));
}

// Rounds to nearest even and saturates: what is above 448, infinity included, becomes 448.
inline uint8_t F32ToE4M3(float f) {
  const int32_t bits = std::bit_cast<int32_t>(f);
  const int32_t magnitude = bits & 0x7fffffff;
  const float aligned = std::bit_cast<float>(magnitude) + 0x1p14f;  // 2^14 has ulp 2^-9
  const int32_t subnormal = std::bit_cast<int32_t>(aligned) - std::bit_cast<int32_t>(0x1p14f);
  const uint32_t rounded =
      (static_cast<uint32_t>(magnitude) + 0x7ffffu + ((static_cast<uint32_t>(bits) >> 20) & 1u)) >> 20;
  const int32_t normal = static_cast<int32_t>(rounded) - (120 << 3);
  const int32_t small = -static_cast<int32_t>(magnitude < 0x3c800000);  // below the smallest normal, 2^-6
  const int32_t finite = std::min((subnormal & small) | (normal & ~small), 0x7e);
  const int32_t code = finite | static_cast<int32_t>(magnitude > 0x7f800000);  // a NaN has saturated
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80));
}

}  // namespace tersekv
