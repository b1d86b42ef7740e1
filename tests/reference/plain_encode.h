// SPDX-License-Identifier: Apache-2.0
// The Lloyd-Max encode of one row in plain loops, written from docs/decisions/0001-contract.md (sections 2 and 3) and
// the numerics contract. It shares no code with src/: only the Haar matrix comes from there, as data.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tersekv/spec.h"

namespace tersekv::reference {

struct PlainCodec {
  int d = 0;
  int bits = 0;
  NormMode norm = NormMode::kNone;
  std::vector<float> mean, inv_scale;  // empty: none
  std::vector<float> signs;            // [d] for h1 and h2, empty otherwise
  std::vector<float> second_signs;     // [d] of +1 / -1 for h2, empty otherwise
  std::vector<float> haar;             // [d, d] for haar, empty otherwise
};

struct PlainRow {
  float s = 0;
  std::vector<float> y;
  std::vector<uint8_t> codes;
  uint16_t scale = 0;
};

inline uint64_t PlainMix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

inline std::vector<float> PlainSigns(uint64_t seed, uint64_t layer, uint64_t kv_head, bool value_side, int d) {
  std::vector<float> signs;
  for (int j = 0; j < d; ++j) {
    uint64_t word = PlainMix(PlainMix(seed) ^ layer);
    word = PlainMix(word ^ (2 * kv_head + (value_side ? 1 : 0)));
    word = PlainMix(word ^ static_cast<uint64_t>(j / 64));
    signs.push_back((word >> (j % 64)) % 2 == 1 ? -1.0f : 1.0f);
  }
  return signs;
}

// h2: the signs of the second round, before their factor of 1 / sqrt(d).
inline std::vector<float> PlainSecondSigns(uint64_t seed, uint64_t layer, uint64_t kv_head, bool value_side, int d) {
  return PlainSigns(PlainMix(seed ^ 0x6832), layer, kv_head, value_side, d);
}

// Entry (r, c) of Paley's matrix of order p (docs/numerics.md).
inline int PlainPaley(int p, int r, int c) {
  const bool first = p == 12 || p == 20;
  const int q = first ? p - 1 : p / 2 - 1;
  const auto character = [q](int a) {  // Euler: a^((q - 1) / 2) mod q
    int power = 1;
    for (int i = 0; i < (q - 1) / 2; ++i) power = power * ((a % q + q) % q) % q;
    return power > 1 ? -1 : power;
  };
  const auto core = [&](int i, int j) { return i == j ? 0 : i == 0 || j == 0 ? 1 : character(i - j); };
  if (first) return r == c ? 1 : c == 0 ? -1 : core(r, c);
  static const int off[2][2] = {{1, 1}, {1, -1}}, diagonal[2][2] = {{1, -1}, {-1, -1}};
  const int value = core(r / 2, c / 2);
  return value == 0 ? diagonal[r % 2][c % 2] : value * off[r % 2][c % 2];
}

inline int PlainPaleyOrder(int d) {
  int odd = d;
  while (odd % 2 == 0) odd /= 2;
  return odd == 1 ? 1 : 4 * odd;
}

// Halves first: the same sums as radix-2 stages of stride 1, 2, 4, ... Then the rows of the outer factor.
inline void PlainHadamard(float* y, int d) {
  if (d == 1) return;
  const int p = PlainPaleyOrder(d), inner = d / p;
  if (p > 1) {
    for (int o = 0; o < p; ++o) PlainHadamard(y + o * inner, inner);
    const std::vector<float> x(y, y + d);
    for (int i = 0; i < inner; ++i) {
      for (int r = 0; r < p; ++r) {
        float sum = PlainPaley(p, r, 0) > 0 ? x[static_cast<size_t>(i)] : -x[static_cast<size_t>(i)];
        for (int c = 1; c < p; ++c) {
          const float v = x[static_cast<size_t>(c * inner + i)];
          sum = PlainPaley(p, r, c) > 0 ? sum + v : sum - v;
        }
        y[r * inner + i] = sum;
      }
    }
    return;
  }
  const int half = d / 2;
  PlainHadamard(y, half);
  PlainHadamard(y + half, half);
  for (int i = 0; i < half; ++i) {
    const float a = y[i], b = y[half + i];
    y[i] = a + b;
    y[half + i] = a - b;
  }
}

// 32 lane sums over v[32k + l] in k order, then an xor tree of 16, 8, 4, 2, 1.
inline float PlainTreeSum(const std::vector<float>& v) {
  float lane[32] = {};
  for (size_t j = 0; j < v.size(); ++j) lane[j % 32] = lane[j % 32] + v[j];
  for (size_t bit = 16; bit > 0; bit /= 2) {
    float next[32];
    for (size_t l = 0; l < 32; ++l) next[l] = lane[l] + lane[l ^ bit];
    for (size_t l = 0; l < 32; ++l) lane[l] = next[l];
  }
  return lane[0];
}

struct PlainLevels {
  std::vector<int> level;  // ascending
  float step = 0;          // 0: a grid of 2^(b-1) - 1 steps on either side
};

inline PlainLevels LevelsOfWidth(int bits) {
  static const std::vector<int> positive[] = {{34, 113},
                                              {13, 40, 71, 113},
                                              {5, 15, 25, 36, 48, 62, 79, 104},
                                              {2, 6, 10, 14, 18, 22, 26, 31, 36, 41, 47, 53, 60, 68, 79, 95},
                                              {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                               33, 36, 39, 42, 45, 48, 51, 54, 58, 62, 66, 71, 77, 84, 93, 108}};
  static const float step[] = {.013317f, .018858f, .025884f, .033545f, .034706f};
  PlainLevels levels;
  if (bits >= 7) {
    const int q = (1 << (bits - 1)) - 1;
    for (int i = -q; i <= q; ++i) levels.level.push_back(i);
    return levels;
  }
  const std::vector<int>& half = positive[bits - 2];
  levels.step = step[bits - 2];
  for (size_t i = half.size(); i-- > 0;) levels.level.push_back(-half[i]);
  for (const int i : half) levels.level.push_back(i);
  return levels;
}

// Nearest bf16, ties to even, saturating at the largest finite one. v >= 0.
inline uint16_t PlainBf16(float v) {
  if (v == 0) return 0;
  if (!(v < 0x1.fep127f)) return 0x7f7f;
  const int exponent = std::max(std::ilogb(v), -126);
  const double quantum = std::ldexp(1.0, exponent - 7);
  const double rounded = std::nearbyint(static_cast<double>(v) / quantum) * quantum;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16);
}

inline float PlainScale(const PlainCodec& codec, float s2, float s, float p, int64_t n2, float amax) {
  const float sqrt_d = std::sqrt(static_cast<float>(codec.d));
  const float n = static_cast<float>(n2);
  const float step = LevelsOfWidth(codec.bits).step;
  const float q = static_cast<float>((1 << (codec.bits - 1)) - 1);
  if (s == 0) return 0;
  if (codec.norm == NormMode::kUnbiased) return p > 0 ? (s2 * sqrt_d) / p : 0;
  if (codec.norm == NormMode::kLs) return p > 0 ? (p / sqrt_d) / n : 0;
  if (codec.norm == NormMode::kMatch) return s / std::sqrt(n);
  return codec.bits >= 7 ? (amax / q) / sqrt_d : s * step / sqrt_d;
}

inline PlainRow PlainEncode(const PlainCodec& codec, const float* row) {
  const size_t d = static_cast<size_t>(codec.d);
  PlainRow out;
  std::vector<float> x(row, row + d), squares(d), products(d);
  for (size_t j = 0; j < d; ++j) {
    if (!codec.mean.empty()) x[j] = x[j] - codec.mean[j];
    if (!codec.inv_scale.empty()) x[j] = x[j] * codec.inv_scale[j];
    squares[j] = x[j] * x[j];
  }
  const float s2 = PlainTreeSum(squares);
  out.s = std::sqrt(s2);
  out.y = x;
  if (!codec.signs.empty()) {
    for (size_t j = 0; j < d; ++j) out.y[j] = x[j] * codec.signs[j];
    PlainHadamard(out.y.data(), codec.d);
    if (!codec.second_signs.empty()) {
      for (size_t j = 0; j < d; ++j) {
        out.y[j] = out.y[j] * (codec.second_signs[j] * (1.0f / std::sqrt(static_cast<float>(d))));
      }
      PlainHadamard(out.y.data(), codec.d);
    }
  } else {
    for (size_t r = 0; r < d && !codec.haar.empty(); ++r) {
      float sum = codec.haar[r * d] * x[0];
      for (size_t c = 1; c < d; ++c) sum = sum + codec.haar[r * d + c] * x[c];
      out.y[r] = sum;
    }
    for (float& v : out.y) v = v * std::sqrt(static_cast<float>(codec.d));
  }
  out.codes.assign(d, 0);
  if (out.s == 0) return out;
  const PlainLevels levels = LevelsOfWidth(codec.bits);
  const size_t count = levels.level.size();
  std::vector<float> edge(count - 1);  // T_k * s, one rounded product
  for (size_t k = 0; k + 1 < count; ++k) {
    edge[k] = levels.step * static_cast<float>(levels.level[k] + levels.level[k + 1]) / 2.0f * out.s;
  }
  float amax = 0;
  for (const float v : out.y) amax = std::fabs(v) > amax ? std::fabs(v) : amax;
  const int q = static_cast<int>(count / 2);
  int64_t n2 = 0;
  for (size_t j = 0; j < d; ++j) {
    size_t code = 0;
    if (codec.bits >= 7) {
      const float ratio = static_cast<float>(q) / amax;
      code = static_cast<size_t>(static_cast<int>(std::nearbyint(out.y[j] * ratio)) + q);
    } else {
      while (code + 1 < count && out.y[j] > edge[code]) ++code;
    }
    out.codes[j] = static_cast<uint8_t>(code);
    const int level = levels.level[code];
    products[j] = out.y[j] * static_cast<float>(level);
    n2 += level * level;
  }
  out.scale = PlainBf16(PlainScale(codec, s2, out.s, PlainTreeSum(products), n2, amax));
  return out;
}

}  // namespace tersekv::reference
