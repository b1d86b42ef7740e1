// SPDX-License-Identifier: Apache-2.0
// Around attention that others do over decompressed rows of the transformed space: queries go into it, results of
// parts of the history are joined and come back. A warp has one row at a time.
#include <cuda_runtime.h>

#include "src/cuda/launch.h"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 8, kTokens = 4;  // a warp has so many tokens of one head: signs and statistics are theirs

// grid: (batch * heads, tokens / (kWarps * kTokens)).
struct RowPlace {
  int batch, head, token;
  int64_t lse;  // index in [batch, heads, q_len]

  __device__ RowPlace(int heads, int q_len)
      : batch(static_cast<int>(blockIdx.x) / heads),
        head(static_cast<int>(blockIdx.x) % heads),
        token(static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32) * kTokens),
        lse(static_cast<int64_t>(blockIdx.x) * q_len + token) {}
  __device__ int64_t In(const Rows& rows) const {
    return batch * rows.batch_stride + token * rows.token_stride + head * rows.head_stride;
  }
};

template <int d>
__global__ void __launch_bounds__(kWarps * 32) TransformKernel(const __grid_constant__ TransformParams p) {
  constexpr int kWidth = d / 32;
  RowPlace at(p.heads, p.q_len);
  const int lane = static_cast<int>(threadIdx.x % 32), count = min(kTokens, p.q_len - at.token);
  if (count <= 0) return;
  const bool scaled = p.pool.block.scaled();
  const int kv_head = at.head / (p.heads / p.pool.kv_heads);
  const float inv_sqrt_d = scaled ? 1.0f / sqrtf(static_cast<float>(d)) : 1.0f;
  float x[kTokens][kWidth], mean[kWidth] = {}, scale[kWidth];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    LoadRow<d>(p.q.data, p.q.type, at.In(p.q) + min(t, count - 1) * p.q.token_stride, lane, x[t]);
  }
  const uint32_t signs = scaled ? RowSigns<d>(p.pool, kv_head, Kv::kK, lane) : 0u;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const int c = kv_head * d + ChannelOf<d>(lane, i);
    if (scaled && p.pool.k.mean != nullptr) mean[i] = p.pool.k.mean[c];
    scale[i] = FlipSign(scaled && p.pool.k.scale != nullptr ? p.pool.k.scale[c] : 1.0f, signs >> i & 1u);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float product = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      product = fmaf(x[t][i], mean[i], product);
      x[t][i] *= scale[i];
    }
    if (scaled) Hadamard<d, false>(x[t], lane);
#pragma unroll
    for (float& v : x[t]) v *= inv_sqrt_d;
    if (t >= count) continue;
    StoreRow<d>(p.out.data, p.out.type, at.In(p.out) + t * p.out.token_stride, lane, x[t]);
    if (p.bias == nullptr) continue;
    product = WarpSum(product);
    if (lane == 0) p.bias[at.lse + t] = p.scale * product;
  }
}

// Weighted rows, with the sum of weights relative to exp(m).
template <int kWidth>
struct Joined {
  float m, sum = 0, acc[kWidth] = {};

  __device__ __forceinline__ void Add(float lse, const float (&v)[kWidth]) {
    const float weight = lse > -INFINITY ? __expf(lse - m) : 0.0f;
    if (weight == 0) return;  // a row that has seen nothing may hold no numbers
    sum += weight;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) acc[i] = fmaf(weight, v[i], acc[i]);
  }
  // The rows' mean; its lse.
  __device__ __forceinline__ float Finish() {
    if (sum == 0) return -INFINITY;
    const float f = 1.0f / sum;
#pragma unroll
    for (float& v : acc) v *= f;
    return m + __logf(sum);
  }
};

// What brings a row of values back, in the order of channels.
template <int d>
struct ValueStats {
  float scale[d / 32], mean[d / 32];
};

template <int d>
__device__ __forceinline__ void MergeRow(const MergeParams& p, const RowPlace& at, const ValueStats<d>& stats,
                                         float* place, int lane) {
  constexpr int kWidth = d / 32, kBatch = 4;  // parts in flight
  const int64_t state = (static_cast<int64_t>(at.batch) * p.q_len + at.token) * p.heads * d + at.head * d;
  Joined<kWidth> history;
  history.m = p.resume ? p.state_lse[at.lse] : -INFINITY;
  const float state_lse = history.m;
#pragma unroll 1
  for (int i = lane; i < p.count; i += 32) history.m = fmaxf(history.m, p.parts[i].lse[at.lse]);
  history.m = WarpMax(history.m);
  float v[kBatch][kWidth], lse[kBatch];
  if (p.resume) {
    LoadRow<d>(p.state, Type::kF32, state, lane, v[0]);
    history.Add(state_lse, v[0]);
  }
#pragma unroll 1
  for (int first = 0; first < p.count; first += kBatch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int part = min(first + i, p.count - 1);
      lse[i] = first + i < p.count ? p.parts[part].lse[at.lse] : -INFINITY;
      if (first + i < p.count) {
        LoadRow<d>(p.parts[part].rows, p.part.type, at.In(p.part), lane, v[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) history.Add(lse[i], v[i]);
  }
  float history_lse = history.Finish();
  if (p.out.data == nullptr) {
    StoreRow<d>(p.state, Type::kF32, state, lane, history.acc);
    if (lane == 0) p.state_lse[at.lse] = history_lse;
    return;
  }
  if (p.pool.block.scaled() && history_lse > -INFINITY) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) place[RowChannel(ChannelOf<d>(lane, i))] = history.acc[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWidth; ++i) history.acc[i] = place[ChannelOf<d>(lane, i)];
    __syncwarp();
    Hadamard<d, true>(history.acc, lane);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) history.acc[i] = fmaf(history.acc[i], stats.scale[i], stats.mean[i]);
    if (p.bias != nullptr) history_lse += p.bias[at.lse];
  }
  Joined<kWidth> all;
  const float own_lse = p.own.data != nullptr ? p.own_lse[at.lse] : -INFINITY;
  all.m = fmaxf(history_lse, own_lse);
  all.Add(history_lse, history.acc);
  if (p.own.data != nullptr) {
    LoadRow<d>(p.own.data, p.own.type, at.In(p.own), lane, v[0]);
    all.Add(own_lse, v[0]);
  }
  const float total_lse = all.Finish();
  StoreRow<d>(p.out.data, p.out.type, at.In(p.out), lane, all.acc);
  if (p.lse != nullptr && lane == 0) p.lse[at.lse] = total_lse;
}

template <int d>
__global__ void __launch_bounds__(kWarps * 32) MergeKernel(const __grid_constant__ MergeParams p) {
  __shared__ float places[kWarps][d];
  RowPlace at(p.heads, p.q_len);
  if (at.token >= p.q_len) return;
  const int lane = static_cast<int>(threadIdx.x % 32), kv_head = at.head / (p.heads / p.pool.kv_heads);
  ValueStats<d> stats;
  const uint32_t signs = p.out.data != nullptr ? RowSigns<d>(p.pool, kv_head, Kv::kV, lane) : 0u;
  const float inv_sqrt_d = 1.0f / sqrtf(static_cast<float>(d));
#pragma unroll
  for (int i = 0; i < d / 32; ++i) {
    const int c = kv_head * d + ChannelOf<d>(lane, i);
    stats.scale[i] = FlipSign(p.pool.v.scale != nullptr ? inv_sqrt_d * p.pool.v.scale[c] : inv_sqrt_d, signs >> i & 1u);
    stats.mean[i] = p.pool.v.mean != nullptr ? p.pool.v.mean[c] : 0.0f;
  }
#pragma unroll 1
  for (const int end = min(at.token + kTokens, p.q_len); at.token < end; ++at.token, ++at.lse) {
    MergeRow<d>(p, at, stats, places[threadIdx.x / 32], lane);
  }
}

template <class Params>
dim3 GridOf(const Params& p) {
  constexpr int kEach = kWarps * kTokens;
  return dim3(static_cast<unsigned>(p.batch * p.heads), static_cast<unsigned>((p.q_len + kEach - 1) / kEach));
}

}  // namespace

Status LaunchTransform(const TransformParams& p, void* stream) {
  return ForHeadDim(p.pool.block.d, "transform", [&]<int d>() {
    TransformKernel<d><<<GridOf(p), kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(p);
  });
}

Status LaunchMerge(const MergeParams& p, void* stream) {
  return ForHeadDim(p.pool.block.d, "merge", [&]<int d>() {
    MergeKernel<d><<<GridOf(p), kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(p);
  });
}

}  // namespace tersekv::cuda
