// SPDX-License-Identifier: Apache-2.0
// One thread block reads the lengths and cuts the step's work (plan.cuh).
#include <cuda_runtime.h>

#include "src/cuda/attend_launch.h"
#include "src/cuda/plan.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kThreads = 1024;

__device__ SequenceTiles TilesOf(const PlanShape& shape, int b, int length) {
  SequenceTiles s{};
  s.length = max(length, 0);
  // The first query row is at position length - q_len and sees the `window` tokens up to it.
  const int seen = shape.window > 0 ? max(0, s.length - shape.q_len + 1 - shape.window) : 0;
  if (shape.raw.data != nullptr && s.length > 0) {
    // Packed tokens are numbered from the sinks on. One tile at least: who works on a pair reads its raw tokens, too.
    const RawTokens& raw = shape.raw;
    const int packed = raw.PackedEnd(s.length, raw.begin != nullptr ? raw.begin[b] : 0) - raw.sink;
    s.first = max(0, seen - raw.sink) / shape.tile_tokens;
    s.count = max(1, (packed + shape.tile_tokens - 1) / shape.tile_tokens - s.first);
    return s;
  }
  s.first = seen / shape.tile_tokens;
  s.count = (s.length + shape.tile_tokens - 1) / shape.tile_tokens - s.first;
  return s;
}

struct Pair {
  int batch, head, begin;
  SequenceTiles sequence;
};

__device__ Pair FindPair(const PlanShape& shape, const SequenceTiles* sequences, int tile) {
  int low = 0, high = shape.batch - 1;  // the last sequence that starts at or before; empty ones share their start
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (sequences[middle].start <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  while (sequences[low].count == 0) --low;
  const SequenceTiles s = sequences[low];
  const int head = (tile - s.start) / s.count;
  return {low, head, s.start + head * s.count, s};
}

__device__ PairParts PartsOf(const Pair& pair, int tiles, int ranges) {
  const int first = RangeOf(tiles, pair.begin, ranges);
  const int last = RangeOf(tiles, pair.begin + pair.sequence.count - 1, ranges);
  return {first, last - first + 1, RangeBegin(tiles, first, ranges) < pair.begin ? 1 : 0};
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
    if (b < shape.batch) s = TilesOf(shape, b, lengths[b]);
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
  for (int i = thread; i < pairs * shape.counters; i += kThreads) out.counters[i] = 0;
  for (int c = thread; c < shape.blocks; c += kThreads) {
    RangeStart r{};
    if (c < ranges) {
      r.begin = RangeBegin(tiles, c, ranges);
      r.end = RangeBegin(tiles, c + 1, ranges);
      const Pair tail = FindPair(shape, out.sequences, r.end - 1), head = FindPair(shape, out.sequences, r.begin);
      r.batch = head.batch;
      r.head = head.head;
      r.sequence = head.sequence;
      r.pair_begin = head.begin;
      r.head_parts = PartsOf(head, tiles, ranges);
      r.tail_parts = PartsOf(tail, tiles, ranges);
    }
    out.ranges[c] = r;
  }
}

}  // namespace

Status LaunchPlan(const PlanShape& shape, const int32_t* lengths, const Workspace& workspace, void* stream) {
  PlanKernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(shape, lengths, workspace);
  return LaunchStatus("plan");
}

}  // namespace tersekv::cuda
