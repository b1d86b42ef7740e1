// SPDX-License-Identifier: Apache-2.0
// Lloyd-Max on a row that eight lanes hold: lane q of them has channels 32 k + 4 q + j (j < 4), so that the 32 running
// sums of docs/numerics.md are sums over k within a lane and the tree is three exchanges and two adds. Compiled without
// contraction: each operation is rounded on its own, in the order of the CPU's encoder.
#pragma once

#include <utility>

#include "src/codec/lloyd_max.h"
#include "src/cuda/loader.cuh"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {

inline constexpr int kRowLanes = 8;

// The tree of 16, 8, 4, 2, 1 over the running sums l = 4 q + j.
__device__ __forceinline__ float TreeSum(float (&sum)[4]) {
#pragma unroll
  for (int lanes = 4; lanes > 0; lanes /= 2) {
#pragma unroll
    for (float& s : sum) s = s + __shfl_xor_sync(kFullWarp, s, lanes);
  }
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

template <int d>
__device__ __forceinline__ void RowHadamard(float (&x)[d / 32][4], int q) {
#pragma unroll
  for (auto& v : x) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], e = v[2] - v[3];
    v[0] = a + c, v[1] = b + e, v[2] = a - c, v[3] = b - e;
  }
#pragma unroll
  for (int stride = 1; stride < kRowLanes; stride *= 2) {
    const float sign = (q & stride) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (auto& v : x) {
#pragma unroll
      for (float& f : v) f = __fmaf_rn(sign, f, __shfl_xor_sync(kFullWarp, f, stride));  // +-f + other, rounded once
    }
  }
#pragma unroll
  for (int stride = 1; stride < d / 32; stride *= 2) {
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      if ((k & stride) != 0) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float a = x[k][j], b = x[k + stride][j];
        x[k][j] = a + b;
        x[k + stride][j] = a - b;
      }
    }
  }
}

// How many of kCount ascending edges `a` is above.
template <int kCount>
__device__ __forceinline__ int CountBelow(uint32_t a, const uint32_t* edge) {
  if constexpr (kCount == 0) {
    return 0;
  } else {
    constexpr int kHalf = kCount / 2;
    const bool above = a > edge[kHalf];
    uint32_t rest[kHalf > 0 ? kHalf : 1];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) rest[i] = above ? edge[kHalf + 1 + i] : edge[i];
    return (above ? kHalf + 1 : 0) + CountBelow<kHalf>(a, rest);
  }
}

template <int bits>
constexpr bool Symmetric() {
  const LevelTable& t = LevelsOf(bits);
  for (int k = 0; k + 1 < t.count; ++k) {
    if (t.threshold[static_cast<size_t>(k)] != -t.threshold[static_cast<size_t>(t.count - 2 - k)]) return false;
  }
  return true;
}

template <int bits, int i>
inline constexpr float kEdge = LevelsOf(bits).threshold[(size_t{1} << (bits - 1)) + i];
template <int bits, int... i>
__device__ __forceinline__ void FillEdges(float s, uint32_t* edge, std::integer_sequence<int, i...>) {
  ((edge[i] = __float_as_uint(kEdge<bits, i> * s)), ...);
}

template <int bits>
__device__ __forceinline__ float MagnitudeOf(int index) {
  uint32_t low = internal::kMagnitudes<bits, 0>, high = internal::kMagnitudes<bits, 4>;
  if constexpr (bits >= 5) {
    if ((index & 8) != 0) low = internal::kMagnitudes<bits, 8>, high = internal::kMagnitudes<bits, 12>;
  }
  if constexpr (bits >= 6) {
    if ((index & 24) == 16) low = internal::kMagnitudes<bits, 16>, high = internal::kMagnitudes<bits, 20>;
    if ((index & 24) == 24) low = internal::kMagnitudes<bits, 24>, high = internal::kMagnitudes<bits, 28>;
  }
  // 2^23 + byte, less 2^23: quicker than a conversion.
  return __uint_as_float((Permute(low, high, static_cast<uint32_t>(index) & 7u) & 0xffu) | 0x4B000000u) - 0x1p23f;
}

// y becomes codes as they are stored; p: <y, level>; n2: <level, level>; peak: the grid's largest |y|. s = 0: canonical
// code 0 and level 0.
template <int bits, int d>
__device__ __forceinline__ void QuantiseRow(const float (&y)[d / 32][4], float s, uint32_t (&codes)[d / 32], float* p,
                                            float* n2, float* peak) {
  float sum[4] = {0, 0, 0, 0};
  float squares = 0;  // exact: integers below 2^24
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
      codes[k] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float level = rintf(y[k][j] * ratio);
        sum[j] = sum[j] + y[k][j] * level;
        squares = squares + level * level;
        const int code = s != 0 ? static_cast<int>(level) + LevelsOf(bits).grid : 0;
        codes[k] |= static_cast<uint32_t>(StoredCode(bits, code)) << (8 * j);
      }
    }
  } else {
    static_assert(Symmetric<bits>(), "negative values take the positive thresholds");
    constexpr int kHalf = 1 << (bits - 1);
    uint32_t edge[kHalf];
    FillEdges<bits>(s, edge, std::make_integer_sequence<int, kHalf - 1>());
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      codes[k] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Ties go down: a positive value must be above the edge, a negative one reaches it. Floats of one sign order
        // like their bits.
        const bool negative = !(y[k][j] > 0);
        const uint32_t magnitude = (__float_as_uint(y[k][j]) & 0x7fffffffu) + (negative ? 1u : 0u);
        const int index = CountBelow<kHalf - 1>(magnitude, edge);
        const float level = MagnitudeOf<bits>(index);
        squares = __fmaf_rn(level, level, squares);
        sum[j] = sum[j] + fabsf(y[k][j]) * level;  // the level has the value's sign
        const uint32_t code =
            s != 0 ? static_cast<uint32_t>(index | (negative ? kHalf : 0)) : static_cast<uint32_t>(StoredCode(bits, 0));
        codes[k] |= code << (8 * j);
      }
    }
  }
  *p = TreeSum(sum);
#pragma unroll
  for (int lanes = 1; lanes < kRowLanes; lanes *= 2) squares = squares + __shfl_xor_sync(kFullWarp, squares, lanes);
  *n2 = squares;
}

}  // namespace tersekv::cuda
