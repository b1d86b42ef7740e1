// SPDX-License-Identifier: Apache-2.0
// Lloyd-Max scalar quantiser with integer levels (TurboQuant_mse: Zandieh et al. 2025, section 3; levels and scales:
// docs/decisions/0001-contract.md, section 2). This file and lloyd_max-inl.h are the codec's one definition, for every
// machine.
//
// A rotated row y (unit-variance scale times its norm s) becomes codes in 0..2^b-1 and one bf16 scale g; it decodes to
// g * R^T level[code]. b = 2..6: fixed thresholds times s; b = 7, 8: a uniform grid up to the row's own maximum.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "src/base/host_device.h"
#include "tersekv/spec.h"

namespace tersekv {

struct LevelTable {
  int bits = 0;
  int count = 0;                      // levels; the grid of b = 7, 8 has 2^b - 1 and leaves the last code unused
  int grid = 0;                       // largest level of the uniform grid, 0 when there are thresholds
  float step = 0;                     // level value = step * level in unit-variance scale (thresholds only)
  std::array<int8_t, 256> level{};    // by code; codes past `count` are 0
  std::array<float, 64> threshold{};  // [count - 1], ascending
};

namespace lloyd_max_internal {

template <size_t kHalf>
constexpr LevelTable FromPositive(int bits, float step, const int (&positive)[kHalf]) {
  LevelTable t;
  t.bits = bits;
  t.count = 2 * static_cast<int>(kHalf);
  t.step = step;
  for (size_t i = 0; i < kHalf; ++i) {
    t.level[kHalf + i] = static_cast<int8_t>(positive[i]);
    t.level[kHalf - 1 - i] = static_cast<int8_t>(-positive[i]);
  }
  // T_k = a_b (i_k + i_k+1) / 2 in fp32
  for (size_t k = 0; k + 1 < 2 * kHalf; ++k) {
    t.threshold[k] = step * static_cast<float>(t.level[k] + t.level[k + 1]) / 2.0f;
  }
  return t;
}

constexpr LevelTable Grid(int bits) {
  LevelTable t;
  t.bits = bits;
  t.grid = (1 << (bits - 1)) - 1;
  t.count = 2 * t.grid + 1;
  for (int c = 0; c < t.count; ++c) t.level[static_cast<size_t>(c)] = static_cast<int8_t>(c - t.grid);
  return t;
}

inline constexpr int k2[] = {34, 113};
inline constexpr int k3[] = {13, 40, 71, 113};
inline constexpr int k4[] = {5, 15, 25, 36, 48, 62, 79, 104};
inline constexpr int k5[] = {2, 6, 10, 14, 18, 22, 26, 31, 36, 41, 47, 53, 60, 68, 79, 95};
inline constexpr int k6[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                             33, 36, 39, 42, 45, 48, 51, 54, 58, 62, 66, 71, 77, 84, 93, 108};

inline constexpr LevelTable kTables[] = {FromPositive(2, 0.013317f, k2),
                                         FromPositive(3, 0.018858f, k3),
                                         FromPositive(4, 0.025884f, k4),
                                         FromPositive(5, 0.033545f, k5),
                                         FromPositive(6, 0.034706f, k6),
                                         Grid(7),
                                         Grid(8)};

}  // namespace lloyd_max_internal

// bits in 2..8.
constexpr const LevelTable& LevelsOf(int bits) { return lloyd_max_internal::kTables[bits - 2]; }

// The scale that is stored, before rounding to bf16. s2: squared norm; p: <y, levels>; n2: <levels, levels>.
TERSEKV_HOST_DEVICE inline float LloydMaxScale(const LevelTable& t, NormMode norm, float s2, float s, float sqrt_d,
                                               float p, float n2, float peak) {
  if (s == 0.0f) return 0.0f;
  switch (norm) {
    case NormMode::kUnbiased:
      return p > 0 ? (s2 * sqrt_d) / p : 0.0f;
    case NormMode::kLs:
      return p > 0 ? (p / sqrt_d) / n2 : 0.0f;
    case NormMode::kMatch:
      return n2 > 0 ? s / std::sqrt(n2) : 0.0f;
    case NormMode::kNone:
      return t.grid != 0 ? (peak / static_cast<float>(t.grid)) / sqrt_d : (s * t.step) / sqrt_d;
  }
  return 0.0f;
}

}  // namespace tersekv
