// SPDX-License-Identifier: Apache-2.0
// E8M0: the scale of OCP MX, 2^(code - 127); 255 is NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tersekv {

// floor(log2 |f|), exact, subnormals included. f is finite; 0 gives -150, less than any other value.
inline int FloorLog2(float f) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(f) & 0x7fffffffu;
  if (magnitude < 0x800000u) return static_cast<int>(std::bit_width(magnitude)) - 150;
  return static_cast<int>(magnitude >> 23) - 127;
}

// Saturates at 2^-127 and 2^127.
inline uint8_t E8M0FromExponent(int exponent) { return static_cast<uint8_t>(std::clamp(exponent, -127, 127) + 127); }

inline float E8M0ToF32(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(code == 0 ? 0x400000u : static_cast<uint32_t>(code) << 23);  // 2^-127 is subnormal
}

}  // namespace tersekv
