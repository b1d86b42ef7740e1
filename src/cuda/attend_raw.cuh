// SPDX-License-Identifier: Apache-2.0
// Raw tokens of a pair: the sinks and the newest ones, a few tiles of 16 tokens, read from device memory straight into
// operands. Whoever multiplies a part of the pair's packed tiles takes the same part of its raw ones, first. Their
// weighted values are then taken to the packed values' space (v_inv_scale, signs, Hadamard), so that from there on a
// state is one state; the packed tokens' part of its sum is kept beside it, for the mean of values.
#pragma once

#include "src/cuda/attend_rows.cuh"

namespace tersekv::cuda {

// The raw tiles of one sequence: those of the sinks, then those of the newest tokens, at multiples of 16 positions.
struct RawTiles {
  int sink_first, sinks, rest_first, rest;

  __device__ __forceinline__ RawTiles(const AttendParams& p, int length, int from) {
    const int end = length - p.q_len + 1;  // of the first query
    const int seen = p.window > 0 ? max(0, end - p.window) : 0;
    const int rest_begin = max(p.raw.PackedEnd(end, from), seen);
    sink_first = seen / kBlockTokens;
    sinks = seen < p.raw.sink ? (min(p.raw.sink, length) + kBlockTokens - 1) / kBlockTokens - sink_first : 0;
    rest_first = max(rest_begin / kBlockTokens, sink_first + sinks);
    rest = rest_begin < length ? max(0, (length + kBlockTokens - 1) / kBlockTokens - rest_first) : 0;
  }
  __device__ __forceinline__ int count() const { return sinks + rest; }
  __device__ __forceinline__ int FirstToken(int i) const {
    return kBlockTokens * (i < sinks ? sink_first + i : rest_first + i - sinks);
  }
  // Tiles before packed tile `tile` of `tiles`.
  __device__ __forceinline__ int Before(int tile, int tiles) const {
    const int all = count();
    if (tile >= tiles) return all;
    return min(all, static_cast<int>(static_cast<float>(tile) * __fdividef(static_cast<float>(all), tiles)));
  }
};

__device__ __forceinline__ const uint8_t* RawBlock(const AttendParams& p, int batch, int head, int token, int bytes) {
  const RawTokens& raw = p.raw;
  const int shift = 31 - __clz(raw.page_tokens);
  const int64_t page = max(raw.table[batch * raw.table_stride + (token >> shift)], 0);
  return raw.data +
         (((page * p.pool.kv_heads + head) << (shift - 4)) + (token & (raw.page_tokens - 1)) / kBlockTokens) * bytes;
}

// The query rows as they are, into a tile's operands: rounded as PrepareQuery does it.
template <class Math, int d>
__device__ __forceinline__ void LoadRawQuery(const AttendParams& p, const RowRange& range, int batch, int kv_head,
                                             Math* math, int lane) {
  constexpr int kSteps = d / 16;
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int nt = 0; nt < Math::kRowTileCount; ++nt) {
    const int row = 8 * nt + g, safe = min(row, range.rows - 1);
    const int64_t at =
        batch * p.q.batch_stride + range.token(safe) * p.q.token_stride + range.head(safe, kv_head) * p.q.head_stride;
    float x[kSteps][4], largest = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      LoadValues<4>(p.q.data, p.q.type, at + i / 4 * 64 + i / 2 % 2 * 32 + c * 8 + i % 2 * 4, x[i]);
#pragma unroll
      for (const float v : x[i]) largest = fmaxf(largest, fabsf(v));
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    const QueryScale scale(largest);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = x[i][2 * j] * scale.up, b = x[i][2 * j + 1] * scale.up;
        math->q[nt][i][j] = Math::kBf16 ? Bits(__floats2bfloat162_rn(a, b)) : Bits(__floats2half2_rn(a, b));
        if (row >= range.rows) math->q[nt][i][j] = 0;
      }
    }
    const float factor = p.scale * kLog2E * scale.down;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      math->factor[nt][i] = __shfl_sync(kFullWarp, factor, 4 * (2 * c + i));
      math->bias[nt][i] = 0;
    }
  }
}

// acc: channels 16 s + g + 8 h of rows 2c and 2c + 1 in acc[s][2 h] and acc[s][2 h + 1], as values. They become what
// products of loader VL would give.
template <class VL, int d>
__device__ __forceinline__ void ToPackedSpace(const Pool& pool, int kv_head, float (&acc)[d / 16][4], int lane) {
  constexpr int kSteps = d / 16;
  const int g = lane / 4;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const uint64_t word = SignWord(pool.seed, pool.layer, kv_head, true, s / 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int channel = 16 * s + 8 * h + g;
      float f = FlipSign(kInvSqrt<d> / kUnitOf<VL>, static_cast<uint32_t>(word >> (channel % 64)) & 1u);
      if (pool.v.inv_scale != nullptr) f *= pool.v.inv_scale[kv_head * d + channel];
      acc[s][2 * h] *= f, acc[s][2 * h + 1] *= f;
    }
  }
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
    const bool upper = (g & stride) != 0;
#pragma unroll
    for (auto& a : acc) {
#pragma unroll
      for (float& v : a) {
        const float other = __shfl_xor_sync(kFullWarp, v, 4 * stride);
        v = upper ? other - v : v + other;
      }
    }
  }
#pragma unroll
  for (auto& a : acc) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = a[i], y = a[i + 2];
      a[i] = x + y, a[i + 2] = x - y;
    }
  }
  if constexpr (kPaley<d>) {
    static_assert(kSteps == 12);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[12];
#pragma unroll
      for (int c = 0; c < 12; ++c) x[c] = acc[c][i];
#pragma unroll
      for (int r = 0; r < 12; ++r) {
        constexpr PaleySigns kSigns = MakePaleySigns(false);
        float sum = 0;
#pragma unroll
        for (int c = 0; c < 12; ++c) sum += (kSigns.row[r] >> c & 1u) != 0 ? -x[c] : x[c];
        acc[r][i] = sum;
      }
    }
  }
#pragma unroll
  for (int stride = 1; stride < (kPaley<d> ? 1 : kSteps); stride *= 2) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if ((s & stride) != 0) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = acc[s][i], y = acc[s + stride][i];
        acc[s][i] = x + y, acc[s + stride][i] = x - y;
      }
    }
  }
}

}  // namespace tersekv::cuda
