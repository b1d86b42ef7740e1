// SPDX-License-Identifier: Apache-2.0
// One row of d channels in a warp: lane i holds channels [i * d / 32, (i + 1) * d / 32). Of 192 channels, which are 12
// (Paley) times 16 (Sylvester), it holds 2 i and 2 i + 1 of every 64.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "src/base/half.h"
#include "src/cuda/params.h"
#include "src/transform/hadamard.h"
#include "src/transform/sign_stream.h"

namespace tersekv::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// kWidth neighbouring values at element `at`, widened. kWidth: 2, 4 or 8.
template <int kWidth>
__device__ __forceinline__ void LoadValues(const void* data, Type type, int64_t at, float* v) {
  if (type == Type::kF32) {
    const float2* p = reinterpret_cast<const float2*>(static_cast<const float*>(data) + at);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) v[2 * i] = p[i].x, v[2 * i + 1] = p[i].y;
    return;
  }
  uint32_t w[kWidth / 2];
  const uint16_t* p = static_cast<const uint16_t*>(data) + at;
  if constexpr (kWidth % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const uint2 u = reinterpret_cast<const uint2*>(p)[i];
      w[2 * i] = u.x, w[2 * i + 1] = u.y;
    }
  } else {
    w[0] = *reinterpret_cast<const uint32_t*>(p);
  }
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    if (type == Type::kBF16) {
      v[2 * i] = __uint_as_float(w[i] << 16), v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    } else {
      const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&w[i]));
      v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
  }
}

template <int kWidth>
__device__ __forceinline__ void StoreValues(void* data, Type type, int64_t at, const float* v) {
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    if (type == Type::kF32) {
      *reinterpret_cast<float2*>(static_cast<float*>(data) + at + i) = make_float2(v[i], v[i + 1]);
    } else if (type == Type::kF16) {
      *reinterpret_cast<__half2*>(static_cast<__half*>(data) + at + i) = __floats2half2_rn(v[i], v[i + 1]);
    } else {
      *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(data) + at + i) =
          __floats2bfloat162_rn(v[i], v[i + 1]);
    }
  }
}

template <int d>
inline constexpr bool kPaley = PaleyOrder(d) != 1;

// Channel of a lane's value i.
template <int d>
__device__ __forceinline__ int ChannelOf(int lane, int i) {
  return kPaley<d> ? i / 2 * 64 + 2 * lane + i % 2 : lane * (d / 32) + i;
}
// v: [d / 32], a lane's values of the row at element `at`.
template <int d>
__device__ __forceinline__ void LoadRow(const void* data, Type type, int64_t at, int lane, float* v) {
  if constexpr (kPaley<d>) {
#pragma unroll
    for (int i = 0; i < d / 32; i += 2) LoadValues<2>(data, type, at + ChannelOf<d>(lane, i), v + i);
  } else {
    LoadValues<d / 32>(data, type, at + lane * (d / 32), v);
  }
}
template <int d>
__device__ __forceinline__ void StoreRow(void* data, Type type, int64_t at, int lane, const float* v) {
  if constexpr (kPaley<d>) {
#pragma unroll
    for (int i = 0; i < d / 32; i += 2) StoreValues<2>(data, type, at + ChannelOf<d>(lane, i), v + i);
  } else {
    StoreValues<d / 32>(data, type, at + lane * (d / 32), v);
  }
}

__device__ __forceinline__ float FlipSign(float v, uint32_t sign) {
  return __uint_as_float(__float_as_uint(v) ^ (sign << 31));
}

// Bit c of word r: entry (r, c) of Paley's matrix of order 12 is -1; transposed: entry (c, r).
struct PaleySigns {
  uint32_t row[12];
};
constexpr PaleySigns MakePaleySigns(bool transposed) {
  PaleySigns signs{};
  for (int r = 0; r < 12; ++r) {
    for (int c = 0; c < 12; ++c) {
      if (PaleyMatrix(12)[transposed ? c * 12 + r : r * 12 + c] < 0) signs.row[r] |= 1u << c;
    }
  }
  return signs;
}
__constant__ const PaleySigns kPaleySigns[2] = {MakePaleySigns(false), MakePaleySigns(true)};

// The outer factor of 192 channels; sums in ascending column.
template <bool kTransposed>
__device__ __forceinline__ void PaleyStage(float* v, int lane) {
  float sum[6];
  uint32_t signs[3];
#pragma unroll
  for (int k = 0; k < 3; ++k) signs[k] = kPaleySigns[kTransposed ? 1 : 0].row[4 * k + lane / 8];
#pragma unroll
  for (int c = 0; c < 12; ++c) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const float x = __shfl_sync(kFullWarp, v[c / 4 * 2 + b], c % 4 * 8 + lane % 8);
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const float term = FlipSign(x, signs[k] >> c & 1u);
        sum[2 * k + b] = c == 0 ? term : sum[2 * k + b] + term;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) v[i] = sum[i];
}

// v: [d / 32]. H v or H^T v, unnormalised: radix-2 stages of stride 1, 2, 4, ... of (a + b, a - b), then Paley's.
template <int d, bool kTransposed>
__device__ __forceinline__ void Hadamard(float* v, int lane) {
  constexpr int kWidth = d / 32;
  // Neighbours in a lane, then lanes; of 192 channels 16 make the inner factor.
  constexpr int kOwn = kPaley<d> ? 2 : kWidth, kLanes = kPaley<d> ? 8 : 32;
#pragma unroll
  for (int stride = 1; stride < kOwn; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if ((i & stride) == 0) {
        const float a = v[i], b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
    }
  }
#pragma unroll
  for (int stride = 1; stride < kLanes; stride *= 2) {
    const bool upper = (lane & stride) != 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float other = __shfl_xor_sync(kFullWarp, v[i], stride);
      v[i] = upper ? other - v[i] : v[i] + other;
    }
  }
  static_assert(!kPaley<d> || d == 192);
  if constexpr (kPaley<d>) PaleyStage<kTransposed>(v, lane);
}

// The signs of this lane's channels: bit i is that of v[i].
template <int d>
__device__ __forceinline__ uint32_t RowSigns(const Pool& pool, int kv_head, Kv side, int lane) {
  if constexpr (kPaley<d>) {
    uint32_t signs = 0;
#pragma unroll
    for (int w = 0; w < d / 64; ++w) {
      const uint64_t word = SignWord(pool.seed, pool.layer, kv_head, side == Kv::kV, w);
      signs |= (static_cast<uint32_t>(word >> (2 * lane)) & 3u) << (2 * w);
    }
    return signs;
  } else {
    constexpr int kWidth = d / 32;
    const uint64_t word = SignWord(pool.seed, pool.layer, kv_head, side == Kv::kV, lane * kWidth / 64);
    return static_cast<uint32_t>(word >> (lane * kWidth % 64)) & ((1u << kWidth) - 1);
  }
}

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(kFullWarp, v, i);
  return v;
}
__device__ __forceinline__ float WarpMax(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, i));
  return v;
}

}  // namespace tersekv::cuda
