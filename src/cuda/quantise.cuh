// SPDX-License-Identifier: Apache-2.0
// Lloyd-Max on eight rows, four lanes each: lane q of a row has channels 32 k + 8 q + j (j < 8), so that the 32 running
// sums of docs/numerics.md are sums over k within a lane. Compiled without contraction: each operation is rounded on
// its own, in the order of the CPU's encoder.
#pragma once

#include "src/codec/lloyd_max.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {

inline constexpr int kRowLanes = 4;
inline constexpr int kStepRows = 32 / kRowLanes;

// A lane's part of a row, and its stored codes: channel 32 k + 8 q + j is byte j % 4 of codes[k][j / 4].
template <int d>
using RowPart = float[d / 32][8];
template <int d>
using RowBytes = uint32_t[d / 32][2];

// The tree of 16, 8, 4, 2, 1 over the running sums l = 8 q + j.
__device__ __forceinline__ float TreeSum(float (&sum)[8]) {
#pragma unroll
  for (int lanes = 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (float& s : sum) s = s + __shfl_xor_sync(kFullWarp, s, lanes);
  }
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) sum[j] = sum[j] + sum[j + half];
  }
  return sum[0];
}

// The outer factor of 192 channels, number 2 k + q / 2 of 12; sums in ascending column.
template <bool kTransposed>
__device__ __forceinline__ void RowPaley(float (&x)[6][8], int q) {
  float sum[6][8];
  uint32_t signs[6];
#pragma unroll
  for (int k = 0; k < 6; ++k) signs[k] = kPaleySigns[kTransposed ? 1 : 0].row[2 * k + q / 2];
#pragma unroll
  for (int c = 0; c < 12; ++c) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float v = __shfl_sync(kFullWarp, x[c / 2][j], c % 2 * 2 + q % 2, kRowLanes);
#pragma unroll
      for (int k = 0; k < 6; ++k) {
        const float term = FlipSign(v, signs[k] >> c & 1u);
        sum[k][j] = c == 0 ? term : sum[k][j] + term;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 6; ++k) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[k][j] = sum[k][j];
  }
}

// Two channels `stride` apart of a lane become their sum and difference.
template <int d, bool kTransposed = false>
__device__ __forceinline__ void RowHadamard(RowPart<d>& x, int q) {
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
#pragma unroll
    for (auto& v : x) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if ((j & stride) != 0) continue;
        const float a = v[j], b = v[j + stride];
        v[j] = a + b, v[j + stride] = a - b;
      }
    }
  }
#pragma unroll
  for (int stride = 1; stride < (kPaley<d> ? 2 : kRowLanes); stride *= 2) {
    const float sign = (q & stride) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (auto& v : x) {
#pragma unroll
      for (float& f : v) f = __fmaf_rn(sign, f, __shfl_xor_sync(kFullWarp, f, stride));  // +-f + other, rounded once
    }
  }
  if constexpr (kPaley<d>) RowPaley<kTransposed>(x, q);
#pragma unroll
  for (int stride = 1; stride < (kPaley<d> ? 1 : d / 32); stride *= 2) {
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      if ((k & stride) != 0) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float a = x[k][j], b = x[k + stride][j];
        x[k][j] = a + b, x[k + stride][j] = a - b;
      }
    }
  }
}

namespace internal {

// Of 2^(bits - 1) magnitudes: edge i lies between magnitudes i - 1 and i.
template <int bits>
constexpr float Edge(int i) {
  return LevelsOf(bits).threshold[static_cast<size_t>((1 << (bits - 1)) - 1 + i)];
}

// Which edge a magnitude is near: u (first + second * u), rounded, for u = magnitude / (norm * reach), at most 1. At
// edge i it is i to within 1/2, so that one exact comparison with that edge gives the index.
struct Guess {
  float first, second;
};
template <int bits>
inline constexpr Guess kGuess = bits == 3   ? Guess{3.1418f, 0}
                                : bits == 4 ? Guess{10.2944f, -3.2285f}
                                : bits == 5 ? Guess{24.6465f, -9.4872f}
                                            : Guess{58.1806f, -26.7333f};
template <int bits>
inline constexpr float kReach = 1.02f * Edge<bits>((1 << (bits - 1)) - 1);

template <int bits>
constexpr bool GuessHolds() {
  const int edges = (1 << (bits - 1)) - 1;
  const auto at = [](double u) { return u * (kGuess<bits>.first + u * kGuess<bits>.second); };
  for (int i = 1; i <= edges; ++i) {
    const double error = at(static_cast<double>(Edge<bits>(i)) / kReach<bits>) - i;
    if (error < -0.46 || error > 0.46) return false;
  }
  // It rises all the way, and the largest is no edge too far.
  return 2 * kGuess<bits>.second + kGuess<bits>.first > 0 && at(1) < edges + 0.46;
}

template <int bits>
constexpr bool Symmetric() {
  const LevelTable& t = LevelsOf(bits);
  for (int k = 0; k + 1 < t.count; ++k) {
    if (t.threshold[static_cast<size_t>(k)] != -t.threshold[static_cast<size_t>(t.count - 2 - k)]) return false;
  }
  return true;
}

__constant__ const LevelTable kLevelTables[] = {LevelsOf(2), LevelsOf(3), LevelsOf(4), LevelsOf(5), LevelsOf(6)};

// The low bytes of four words, or their top ones.
template <bool kTop>
__device__ __forceinline__ uint32_t Gather(uint32_t a, uint32_t b, uint32_t c, uint32_t e) {
  constexpr uint32_t kTwo = kTop ? 0x0073 : 0x0040;
  return Permute(Permute(a, b, kTwo), Permute(c, e, kTwo), 0x5410);
}

}  // namespace internal

// A lane keeps one edge and one level; others fetch them by number.
template <int bits>
struct QuantiserTable {
  float edge = 0, level = 0;

  __device__ __forceinline__ explicit QuantiserTable(int lane) {
    if constexpr (bits <= 6) {
      constexpr int kHalf = 1 << (bits - 1);
      const LevelTable& t = internal::kLevelTables[bits - 2];
      const int i = min(lane, kHalf - 1);
      edge = i == 0 ? -1.0f : t.threshold[kHalf - 1 + i];  // every magnitude is above the first
      level = static_cast<float>(t.level[kHalf + i]);
    }
  }
};

// y becomes codes as they are stored; p: <y, level>; n2: <level, level> when `squares` asks for it; peak: the grid's
// largest |y|. s = 0: canonical code 0; p and n2 mean nothing.
template <int bits, int d>
__device__ __forceinline__ void QuantiseRows(const RowPart<d>& y, float s, const QuantiserTable<bits>& table,
                                             bool squares, RowBytes<d>& codes, float* p, float* n2, float* peak) {
  float sum[8] = {}, square_sum = 0;  // square_sum: exact, integers below 2^24
  constexpr float kLift = 0x1.8p23f;  // a float near it ends in its integer
  *peak = 0;
  if constexpr (bits > 6) {
    constexpr float kGrid = static_cast<float>(LevelsOf(bits).grid);
    float largest = 0;
#pragma unroll
    for (const auto& v : y) {
#pragma unroll
      for (const float f : v) largest = fmaxf(largest, fabsf(f));
    }
#pragma unroll
    for (int lanes = 1; lanes < kRowLanes; lanes *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, lanes));
    }
    *peak = largest;
    const float ratio = s != 0 ? kGrid / largest : 0.0f;
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      uint32_t lifted[8];
      float level[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float v = y[k][j] * ratio + kLift;
        level[j] = v - kLift;
        lifted[j] = __float_as_uint(v);
        sum[j] = sum[j] + y[k][j] * level[j];
      }
      if (squares) {
#pragma unroll
        for (const float l : level) square_sum = __fmaf_rn(l, l, square_sum);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t* l = lifted + 4 * h;
        codes[k][h] = internal::Gather<false>(l[0], l[1], l[2], l[3]) ^ 0x80808080u;  // level + 128
      }
    }
  } else {
    using internal::kGuess;
    static_assert(internal::Symmetric<bits>(), "negative values take the positive thresholds");
    static_assert(bits == 2 || internal::GuessHolds<bits>(), "one comparison must do");
    float scale;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(s * internal::kReach<bits>));
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      uint32_t index[8], sign[8];
      float level[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        // Ties go down: a positive value must be above the edge, a negative one reaches it. The smallest float less,
        // rounded towards zero, is the float below a positive value, a negative value itself, and below zero for zero.
        const float v = __fadd_rz(y[k][j], -0x1p-149f);
        const float magnitude = fabsf(v);
        float edge;
        if constexpr (bits == 2) {
          index[j] = 1;
          edge = internal::Edge<2>(1) * s;
        } else {
          const float u = __saturatef(magnitude * scale);
          float slope = kGuess<bits>.first;
          if constexpr (kGuess<bits>.second != 0) slope = __fmaf_rn(kGuess<bits>.second, u, slope);
          index[j] = __float_as_uint(__fmaf_rn(slope, u, kLift));
          edge = __shfl_sync(kFullWarp, table.edge, static_cast<int>(index[j])) * s;
        }
        index[j] += static_cast<uint32_t>(__float_as_int(magnitude - edge) >> 31);  // one less below it
        level[j] = __shfl_sync(kFullWarp, table.level, static_cast<int>(index[j]));
        sign[j] = __float_as_uint(v);
        sum[j] = sum[j] + fabsf(y[k][j]) * level[j];  // the level has the value's sign
      }
      if (squares) {
#pragma unroll
        for (const float l : level) square_sum = __fmaf_rn(l, l, square_sum);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t *i = index + 4 * h, *n = sign + 4 * h;
        codes[k][h] = internal::Gather<false>(i[0], i[1], i[2], i[3]) |
                      (internal::Gather<true>(n[0], n[1], n[2], n[3]) & 0x80808080u) >> (8 - bits);
      }
    }
  }
  if (s == 0) {
#pragma unroll
    for (auto& two : codes) two[0] = two[1] = StoredCode(bits, 0) * 0x01010101u;
  }
  *p = TreeSum(sum);
#pragma unroll
  for (int lanes = 1; lanes < kRowLanes; lanes *= 2) {
    square_sum = square_sum + __shfl_xor_sync(kFullWarp, square_sum, lanes);
  }
  *n2 = square_sum;
}

}  // namespace tersekv::cuda
