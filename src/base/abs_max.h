// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tersekv {

// Largest |x| of n values that are no NaN. Patterns without their sign are ordered like magnitudes, and a maximum of
// integers vectorises.
inline float AbsMax(const float* x, int n) {
  int32_t largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  return std::bit_cast<float>(largest);
}

}  // namespace tersekv
