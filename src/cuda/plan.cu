// SPDX-License-Identifier: Apache-2.0
// One thread block reads the lengths and cuts the step's work (plan.cuh).
#include <cuda_runtime.h>

#include "src/cuda/attend_launch.h"
#include "src/cuda/plan.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kThreads = 1024;

__device__ SequenceTiles TilesOf(const PlanShape& shape, int length) {
  SequenceTiles s{};
  s.length = max(length, 0);
  // The first query row is at position length - q_len and sees the `window` tokens up to it.
  const int seen = shape.window > 0 ? max(0, s.length - shape.q_len + 1 - shape.window) : 0;
  s.first = seen / shape.tile_tokens;
  s.count = (s.length + shape.tile_tokens - 1) / shape.tile_tokens - s.first;
  return s;
}

__global__ void __launch_bounds__(kThreads) PlanKernel(PlanShape shape, const int32_t* lengths, Workspace out) {
  __shared__ int32_t sums[kThreads / 32];
  __shared__ int32_t total;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) total = 0;
  __syncthreads();
  for (int base = 0; base < shape.batch; base += kThreads) {
    const int b = base + thread;
    SequenceTiles s{};
    if (b < shape.batch) s = TilesOf(shape, lengths[b]);
    const int own = s.count * shape.kv_heads;
    int sum = own;  // inclusive, of the warp
    for (int i = 1; i < 32; i *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, i);
      if (lane >= i) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int before = total;
    for (int w = 0; w < warp; ++w) before += sums[w];
    s.start = before + sum - own;
    if (b < shape.batch) out.sequences[b] = s;
    __syncthreads();
    if (thread == kThreads - 1) total = before + sum;
    __syncthreads();
  }
  const int tiles = total, pairs = shape.batch * shape.kv_heads;
  // When pairs are fewer than blocks and a few idle blocks cost little, ranges end where pairs of one length do.
  int ranges = shape.blocks;
  if (pairs < ranges && ranges / pairs * pairs * 20 >= ranges * 19) ranges = ranges / pairs * pairs;
  ranges = min(ranges, tiles);
  if (thread == 0) *out.header = {tiles, ranges, {0, 0}};
  for (int i = thread; i < pairs * shape.row_tiles; i += kThreads) out.counters[i] = 0;
  for (int c = thread; c < ranges; c += kThreads) {
    RangeStart r{};
    r.begin = RangeBegin(tiles, c, ranges);
    r.end = RangeBegin(tiles, c + 1, ranges);
    int low = 0, high = shape.batch - 1;  // the last sequence that starts at or before; empty ones share their start
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (out.sequences[middle].start <= r.begin) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    while (out.sequences[low].count == 0) --low;
    r.sequence = out.sequences[low];
    const int head = (r.begin - r.sequence.start) / r.sequence.count;
    r.pair = low * shape.kv_heads + head;
    r.pair_begin = r.sequence.start + head * r.sequence.count;
    out.ranges[c] = r;
  }
}

}  // namespace

Status LaunchPlan(const PlanShape& shape, const int32_t* lengths, const Workspace& workspace, void* stream) {
  PlanKernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(shape, lengths, workspace);
  return LaunchStatus("plan");
}

}  // namespace tersekv::cuda
