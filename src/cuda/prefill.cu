// SPDX-License-Identifier: Apache-2.0
// Around attention that others do over decompressed rows of the transformed space: queries go into it, results of
// parts of the history are joined and come back. One warp a row.
#include <cuda_runtime.h>

#include "src/cuda/launch.h"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 8;

struct RowPlace {
  int batch, token, head;
  int64_t lse;  // index in [batch, heads, q_len]

  __device__ RowPlace(int64_t row, int heads, int q_len)
      : batch(static_cast<int>(row / heads / q_len)),
        token(static_cast<int>(row / heads % q_len)),
        head(static_cast<int>(row % heads)),
        lse((static_cast<int64_t>(batch) * heads + head) * q_len + token) {}
  __device__ int64_t In(const Rows& rows) const {
    return batch * rows.batch_stride + token * rows.token_stride + head * rows.head_stride;
  }
};

__device__ __forceinline__ int64_t WarpRow() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }

template <int d>
__global__ void __launch_bounds__(kWarps * 32) TransformKernel(const __grid_constant__ TransformParams p) {
  constexpr int kWidth = d / 32;
  const int64_t row = WarpRow();
  if (row >= static_cast<int64_t>(p.batch) * p.q_len * p.heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32), channel = lane * kWidth;
  const RowPlace at(row, p.heads, p.q_len);
  float x[kWidth], product = 0;
  LoadValues<kWidth>(p.q.data, p.q.type, at.In(p.q) + channel, x);
  if (p.pool.block.scaled()) {
    const int kv_head = at.head / (p.heads / p.pool.kv_heads);
    const SideStats& stats = p.pool.k;
    if (stats.mean != nullptr) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) product = fmaf(x[i], stats.mean[kv_head * d + channel + i], product);
      product = WarpSum(product);
    }
    const uint32_t signs = RowSigns<d>(p.pool, kv_head, Kv::kK, lane);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (stats.scale != nullptr) x[i] *= stats.scale[kv_head * d + channel + i];
      x[i] = FlipSign(x[i], signs >> i & 1u);
    }
    Hadamard<d>(x, lane);
    const float inv_sqrt_d = 1.0f / sqrtf(static_cast<float>(d));
#pragma unroll
    for (float& v : x) v *= inv_sqrt_d;
  }
  StoreValues<kWidth>(p.out.data, p.out.type, at.In(p.out) + channel, x);
  if (p.bias != nullptr && lane == 0) p.bias[at.lse] = p.scale * product;
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

template <int d>
__global__ void __launch_bounds__(kWarps * 32) MergeKernel(const __grid_constant__ MergeParams p) {
  constexpr int kWidth = d / 32, kBatch = 4;  // parts in flight
  __shared__ float rows[kWarps][d];
  const int64_t row = WarpRow();
  if (row >= static_cast<int64_t>(p.batch) * p.q_len * p.heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32), channel = lane * kWidth;
  const RowPlace at(row, p.heads, p.q_len);
  Joined<kWidth> history;
  history.m = p.resume ? p.state_lse[at.lse] : -INFINITY;
  const float state_lse = history.m;
#pragma unroll 1
  for (int i = lane; i < p.count; i += 32) history.m = fmaxf(history.m, p.parts[i].lse[at.lse]);
  history.m = WarpMax(history.m);
  float v[kBatch][kWidth], lse[kBatch];
  if (p.resume) {
    LoadValues<kWidth>(p.state, Type::kF32, row * d + channel, v[0]);
    history.Add(state_lse, v[0]);
  }
#pragma unroll 1
  for (int first = 0; first < p.count; first += kBatch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int part = min(first + i, p.count - 1);
      lse[i] = first + i < p.count ? p.parts[part].lse[at.lse] : -INFINITY;
      LoadValues<kWidth>(p.parts[part].rows, p.part.type, at.In(p.part) + channel, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) history.Add(lse[i], v[i]);
  }
  float history_lse = history.Finish();
  if (p.out.data == nullptr) {
    StoreValues<kWidth>(p.state, Type::kF32, row * d + channel, history.acc);
    if (lane == 0) p.state_lse[at.lse] = history_lse;
    return;
  }
  if (p.pool.block.scaled() && history_lse > -INFINITY) {
    const int kv_head = at.head / (p.heads / p.pool.kv_heads);
    const SideStats& stats = p.pool.v;
    Hadamard<d>(history.acc, lane);
    float* own_row = rows[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) own_row[RowChannel(channel + i)] = history.acc[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWidth; ++i) history.acc[i] = own_row[channel + i];
    const uint32_t signs = RowSigns<d>(p.pool, kv_head, Kv::kV, lane);
    const float inv_sqrt_d = 1.0f / sqrtf(static_cast<float>(d));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      history.acc[i] *= FlipSign(inv_sqrt_d, signs >> i & 1u);
      if (stats.scale != nullptr) history.acc[i] *= stats.scale[kv_head * d + channel + i];
      if (stats.mean != nullptr) history.acc[i] += stats.mean[kv_head * d + channel + i];
    }
    if (p.bias != nullptr) history_lse += p.bias[at.lse];
  }
  Joined<kWidth> all;
  const float own_lse = p.own.data != nullptr ? p.own_lse[at.lse] : -INFINITY;
  all.m = fmaxf(history_lse, own_lse);
  all.Add(history_lse, history.acc);
  if (p.own.data != nullptr) {
    LoadValues<kWidth>(p.own.data, p.own.type, at.In(p.own) + channel, v[0]);
    all.Add(own_lse, v[0]);
  }
  const float total_lse = all.Finish();
  StoreValues<kWidth>(p.out.data, p.out.type, at.In(p.out) + channel, all.acc);
  if (p.lse != nullptr && lane == 0) p.lse[at.lse] = total_lse;
}

template <class Params>
unsigned BlocksOf(const Params& p) {
  return static_cast<unsigned>((static_cast<int64_t>(p.batch) * p.q_len * p.heads + kWarps - 1) / kWarps);
}

}  // namespace

Status LaunchTransform(const TransformParams& p, void* stream) {
  return ForHeadDim(p.pool.block.d, "transform", [&]<int d>() {
    TransformKernel<d><<<BlocksOf(p), kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(p);
  });
}

Status LaunchMerge(const MergeParams& p, void* stream) {
  return ForHeadDim(p.pool.block.d, "merge", [&]<int d>() {
    MergeKernel<d><<<BlocksOf(p), kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(p);
  });
}

}  // namespace tersekv::cuda
