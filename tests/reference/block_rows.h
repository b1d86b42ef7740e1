// SPDX-License-Identifier: Apache-2.0
// Rows that small-block formats could get wrong: ties, zeros, subnormals, huge values, extremes of both signs.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv::reference {

// n rows of d finite values, a row of each kind in turn. d: a multiple of 16.
inline std::vector<float> BlockRows(uint64_t seed, size_t n, int d) {
  std::vector<float> rows(n * static_cast<size_t>(d));
  Random random(seed);
  const float peaks[] = {1, 6, 8, 16, 127, 448, -8, -16, -127};
  for (size_t r = 0; r < n; ++r) {
    float* row = rows.data() + r * static_cast<size_t>(d);
    const int exponent = static_cast<int>(random.Below(40)) - 20, wide = static_cast<int>(random.Below(270)) - 145;
    for (int c = 0; c < d; ++c) {
      const double g = random.Gaussian();
      const float small = static_cast<float>(static_cast<int>(random.Below(33)) - 16);
      float& v = row[c];
      switch (r % 14) {
        case 0:  // ordinary
          v = static_cast<float>(g);
          break;
        case 1:
          v = std::ldexp(static_cast<float>(g), exponent);
          break;
        case 2:  // ties and repeated extremes
          v = small;
          break;
        case 3:
          v = std::ldexp(small, exponent - 1);
          break;
        case 4:  // halves, and an extreme that makes the scale a power of two
          v = c % 16 == 5 ? peaks[r / 14 % 9] : static_cast<float>(random.Below(29)) * 0.25f - 3.5f;
          break;
        case 5:  // spread over many binades
          v = std::ldexp(static_cast<float>(g), static_cast<int>(random.Below(24)) - 12);
          break;
        case 6:  // sparse
          v = random.Below(9) == 0 ? static_cast<float>(g) : 0.0f;
          break;
        case 7:  // zeros of both signs, and blocks of them only
          v = random.Below(2) == 0 || c >= d / 2 ? 0.0f : -0.0f;
          break;
        case 8:  // subnormals of fp32
          v = std::ldexp(static_cast<float>(g), -140);
          break;
        case 9:  // any exponent, up to 2^126
          v = std::ldexp(static_cast<float>(std::fmin(g, 1.9)), std::min(wide, 124));
          break;
        case 10:  // around 1e-15, where searches give up
          v = static_cast<float>(g * 1e-15);
          break;
        case 11:  // one outlier
          v = static_cast<float>(c % 16 == static_cast<int>(r % 16) ? 60 * g : g);
          break;
        case 12:  // constant magnitude
          v = std::ldexp(random.Below(2) == 0 ? 1.5f : -1.5f, exponent);
          break;
        default:  // integers over 4
          v = std::nearbyint(static_cast<float>(4 * g)) * 0.25f;
          break;
      }
    }
  }
  return rows;
}

}  // namespace tersekv::reference
