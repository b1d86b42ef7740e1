// SPDX-License-Identifier: Apache-2.0
// What happens to whole rows, one warp a row: a query is transformed before the first tile (keys are never rotated
// back), states of warps and of thread blocks join in a fixed order, and the value transform is undone once at the end.
#pragma once

#include "src/cuda/attend_tile.cuh"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {

inline constexpr float kLn2 = 0.6931471805599453f;
// What 1.0f / sqrtf(d) gives. IEEE division has a slow path whose code is far away.
template <int d>
inline constexpr float kInvSqrt = d == 64    ? 0.125f
                                  : d == 128 ? 1.0f / 11.3137085f
                                  : d == 192 ? 1.0f / 13.85640646f
                                             : 0.0625f;

// Which query rows a thread block works on, and where their heads are.
struct RowRange {
  int row0, rows, group;
  __device__ int token(int row) const { return (row0 + row) / group; }
  __device__ int head(int row, int kv_head) const { return kv_head * group + (row0 + row) % group; }
};

// The power of two that takes a row's largest value to [2^13, 2^14); rows below 2^-100 count as that.
struct QueryScale {
  float up, down;  // down = 1 / up
  __device__ __forceinline__ explicit QueryScale(float largest) {
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 27) - 127;
    up = __uint_as_float(static_cast<uint32_t>(127 + 13 - exponent) << 23);
    down = __uint_as_float(static_cast<uint32_t>(127 - 13 + exponent) << 23);
  }
};

// Row `row` of (batch, kv_head) becomes f16 (bf16 for raw bf16 keys) at `out` and its terms. The row is scaled by a
// power of two to a largest value in [2^13, 2^14), so that f16 is precise for queries of any size. For keys in bytes it
// becomes integers 256 a + b: [d] a, [d] b.
template <class KL, int d>
__device__ __forceinline__ void PrepareQuery(const AttendParams& p, const RowRange& range, int batch, int kv_head,
                                             int row, uint8_t* out, RowTerms* terms, int lane) {
  constexpr int kWidth = d / 32;
  float x[kWidth];
  float mean_product = 0;
  LoadRow<d>(
      p.q.data, p.q.type,
      batch * p.q.batch_stride + range.token(row) * p.q.token_stride + range.head(row, kv_head) * p.q.head_stride, lane,
      x);
  if constexpr (KL::kScaled) {
    const SideStats& stats = p.pool.k;
    if (stats.mean != nullptr) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        mean_product = fmaf(x[i], stats.mean[kv_head * d + ChannelOf<d>(lane, i)], mean_product);
      mean_product = WarpSum(mean_product);
    }
    const uint32_t signs = RowSigns<d>(p.pool, kv_head, Kv::kK, lane);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (stats.scale != nullptr) x[i] *= stats.scale[kv_head * d + ChannelOf<d>(lane, i)];
      x[i] = FlipSign(x[i], signs >> i & 1u);
    }
    Hadamard<d, false>(x, lane);
    constexpr float inv_sqrt_d = kInvSqrt<d>;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] *= inv_sqrt_d;
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, fabsf(x[i]));
  largest = WarpMax(largest);
  const QueryScale to(largest);
  const float factor = p.scale * kLog2E * kUnitOf<KL> * to.down;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] *= to.up;
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const int channel = ChannelOf<d>(lane, i);
    if constexpr (ByteLoader<KL>) {
      const uint32_t v = static_cast<uint32_t>(__float2int_rn(x[i])),
                     next = static_cast<uint32_t>(__float2int_rn(x[i + 1]));
      const uint32_t high = Permute(v + 128, next + 128, 0x51), low = Permute(v, next, 0x40);
      *reinterpret_cast<uint16_t*>(out + channel) = static_cast<uint16_t>(high);
      *reinterpret_cast<uint16_t*>(out + d + channel) = static_cast<uint16_t>(low);
    } else if constexpr (KL::kBf16) {
      *reinterpret_cast<uint32_t*>(out + 2 * channel) = Bits(__floats2bfloat162_rn(x[i], x[i + 1]));
    } else {
      *reinterpret_cast<uint32_t*>(out + 2 * channel) = Bits(__floats2half2_rn(x[i], x[i + 1]));
    }
  }
  if (lane == 0) *terms = {factor, p.scale * kLog2E * mean_product};
}

template <int d>
struct RowState {
  static constexpr int kWidth = d / 32;
  float m, l, packed, acc[kWidth];  // packed: what of l packed tokens have; acc: this lane's channels
};

// Joins states 0 .. count - 1 of one row, in the same order whoever does it. at(i): where the accumulators are,
// terms(i): where its terms are.
template <int d, bool kRaw, bool kGlobal, class At, class Terms>
__device__ __forceinline__ RowState<d> JoinStates(int count, At at, Terms terms, int lane) {
  constexpr int kWidth = d / 32, kBatch = 4;  // loads in flight
  auto load2 = [](const float* from) {
    const float2* v = reinterpret_cast<const float2*>(from);
    if constexpr (kGlobal) return __ldcg(v);
    return *v;
  };
  RowState<d> r;
  r.m = kEmpty;
  r.l = r.packed = 0;
#pragma unroll
  for (float& v : r.acc) v = 0;
#pragma unroll 1
  for (int i = lane; i < count; i += 32) r.m = fmaxf(r.m, load2(terms(i)).x);
  r.m = WarpMax(r.m);
#pragma unroll 1
  for (int base = 0; base < count; base += 32) {  // a lane has the factor of one state
    const int own = min(32, count - base);
    const float2 state = load2(terms(base + min(lane, own - 1)));
    const float factor = lane < own ? Exp2(state.x - r.m) : 0.0f;
    r.l += WarpSum(state.y * factor);
    if constexpr (kRaw) r.packed += WarpSum(load2(terms(base + min(lane, own - 1)) + 2).x * factor);
#pragma unroll 1
    for (int first = 0; first < own; first += kBatch) {
      float2 v[kBatch][kWidth / 2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float* from = at(base + min(first + i, own - 1));
#pragma unroll
        for (int c = 0; c < kWidth / 2; ++c) v[i][c] = load2(from + ChannelOf<d>(lane, 2 * c));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float f = __shfl_sync(kFullWarp, factor, (first + i) & 31);  // 0 past the last
#pragma unroll
        for (int c = 0; c < kWidth / 2; ++c) {
          r.acc[2 * c] = fmaf(v[i][c].x, f, r.acc[2 * c]);
          r.acc[2 * c + 1] = fmaf(v[i][c].y, f, r.acc[2 * c + 1]);
        }
      }
    }
  }
  if constexpr (!kRaw) r.packed = r.l;
  return r;
}

// Writes output, lse and l_packed of a row.
template <class VL, int d>
__device__ __forceinline__ void FinishRow(const AttendParams& p, const RowRange& range, int batch, int kv_head, int row,
                                          RowState<d>& r, int lane) {
  constexpr int kWidth = d / 32;
  const int head = range.head(row, kv_head), token = range.token(row);
  float m = r.m, l = r.l, kept = 1;  // kept: what of l tokens have
  if (p.sinks != nullptr) {
    const float sink = p.sinks[head] * kLog2E;
    m = fmaxf(r.m, sink);
    kept = Exp2(r.m - m);
    l = r.l * kept + Exp2(sink - m);
  }
  const float f = r.l > 0 ? __fdividef(kept, l) : 0.0f, share = r.packed * f;
#pragma unroll
  for (float& v : r.acc) v *= f * kUnitOf<VL>;
  if (VL::kScaled && p.rotate_out) {
    Hadamard<d, true>(r.acc, lane);
    const uint32_t signs = RowSigns<d>(p.pool, kv_head, Kv::kV, lane);
    constexpr float inv_sqrt_d = kInvSqrt<d>;
    const SideStats& stats = p.pool.v;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int at = kv_head * d + ChannelOf<d>(lane, i);
      r.acc[i] *= FlipSign(inv_sqrt_d, signs >> i & 1u);
      if (stats.scale != nullptr) r.acc[i] *= stats.scale[at];
      if (stats.mean != nullptr) r.acc[i] = fmaf(stats.mean[at], share, r.acc[i]);
    }
  }
  StoreRow<d>(p.out.data, p.out.type,
              batch * p.out.batch_stride + token * p.out.token_stride + head * p.out.head_stride, lane, r.acc);
  if (lane == 0) {
    const int64_t at = (static_cast<int64_t>(batch) * p.q_len + token) * p.heads + head;
    if (p.lse != nullptr) p.lse[at] = l > 0 ? (m + Log2(l)) * kLn2 : -INFINITY;
    if (p.l_packed != nullptr) p.l_packed[at] = share;
  }
}

}  // namespace tersekv::cuda
