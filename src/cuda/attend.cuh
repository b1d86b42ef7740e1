// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows over a packed, paged history: one thread block a multiprocessor, each with a range of
// tiles (plan.cuh). Warps multiply tiles on their own; at the end of a pair each hands over its state, and one more
// warp, the server, joins them while the others go on with the next pair. Parts of a pair that several blocks share
// meet in the workspace, and the block that comes last joins them, in the order of the parts.
#pragma once

#include "src/cuda/attend_launch.h"
#include "src/cuda/attend_rows.cuh"
#include "src/cuda/attend_source.cuh"

namespace tersekv::cuda {

template <class KL, class VL, int d, int kRowTiles>
struct AttendConfig {
  static constexpr BlockLayout kLayout{KL::kBits, VL::kBits, d};
  static constexpr int kTileLimit = 8704;  // bytes
  static constexpr int kBlocks = 4 * kLayout.bytes() <= kTileLimit ? 4 : 2 * kLayout.bytes() <= kTileLimit ? 2 : 1;
  static constexpr int kTileTokens = kBlocks * kBlockTokens;
#ifndef KW
#define KW 12
#endif
  static constexpr int kMaxWarps = d <= 128 && kRowTiles == 1 ? KW : 7;
  static constexpr int kThreads = 32 * (kMaxWarps + 1);
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kStateStride = d + 4;  // floats of a row, padded against bank conflicts
  using Math = TileMath<KL, VL, d, kRowTiles, kBlocks>;
  using Source = TileSource<kTileTokens, kLayout.bytes()>;
  static constexpr int kQueryBytes = kRows * Math::kQueryStride;

  // Offsets in the block's shared memory.
  struct Shared {
    int states, state_terms, queries, terms, barriers, bytes;
    constexpr Shared(int warps, int slots, int rows)
        : states(warps * slots * Source::kTileBytes),
          state_terms(states + warps * rows * kStateStride * 4),
          queries((state_terms + warps * rows * 8 + 15) / 16 * 16),
          terms(queries + 2 * kQueryBytes),
          barriers(terms + 2 * kRows * static_cast<int>(sizeof(RowTerms))),
          bytes(barriers + 8 * (warps * slots + 4) + 16) {}
  };
};

// A thread block's view of its work.
template <class KL, class VL, int d, int kRowTiles>
struct AttendBlock {
  using C = AttendConfig<KL, VL, d, kRowTiles>;

  const AttendParams& p;
  const Workspace& ws;
  const AttendShape& shape;
  const RangeStart& range;
  RowRange rows;
  uint8_t* memory;
  typename C::Shared at;
  int tid, lane, warp;

  __device__ float* State(int w, int row) const {
    return reinterpret_cast<float*>(memory + at.states) + (w * rows.rows + row) * C::kStateStride;
  }
  __device__ float* StateTerms(int w, int row) const {
    return reinterpret_cast<float*>(memory + at.state_terms) + (w * rows.rows + row) * 2;
  }
  __device__ RowTerms* Terms(int buffer) const {
    return reinterpret_cast<RowTerms*>(memory + at.terms) + buffer * C::kRows;
  }
  __device__ uint32_t Barrier(int i) const { return SharedAddress(memory + at.barriers) + 8 * i; }
  __device__ uint32_t Full() const { return Barrier(shape.warps * shape.slots); }       // all states are there
  __device__ uint32_t Empty() const { return Barrier(shape.warps * shape.slots + 1); }  // they have been read
  __device__ uint32_t Query(int buffer) const { return Barrier(shape.warps * shape.slots + 2 + buffer); }
  // Pairs whose parts this block joins when its own tiles are done: at most the first and the last.
  __device__ int* Pending() const { return reinterpret_cast<int*>(memory + at.bytes) - 4; }

  // Rows first, first + step, ... of a pair's queries.
  __device__ void Prepare(const PairCursor& pair, int buffer, int first, int step) const {
    for (int row = first; row < C::kRows; row += step) {
      PrepareQuery<KL, d>(p, rows, pair.batch, pair.head, row,
                          memory + at.queries + buffer * C::kQueryBytes + row * C::Math::kQueryStride,
                          Terms(buffer) + row, lane);
    }
  }

  // The parts of a pair: one a range that it touches. Slot 0 of a range holds what began before it or with it.
  struct Parts {
    int first, count;  // ranges
    bool second_slot;  // of the first range
  };
  __device__ Parts PartsOf(const PairCursor& pair) const {
    const int tiles = ws.header->tiles, ranges = ws.header->ranges;
    const int first = RangeOf(tiles, pair.begin, ranges), last = RangeOf(tiles, pair.end() - 1, ranges);
    return {first, last - first + 1, RangeBegin(tiles, first, ranges) < pair.begin};
  }
  __device__ float* Part(const Parts& parts, int k) const {
    const int slot = 2 * (parts.first + k) + (k == 0 && parts.second_slot ? 1 : 0);
    return ws.parts + (static_cast<size_t>(blockIdx.y) * 2 * shape.blocks + slot) * PartFloats(shape.rows, d);
  }
  __device__ bool Whole(const PairCursor& pair) const { return pair.begin >= range.begin && pair.end() <= range.end; }

  // Joins the warps' states of rows first, first + step, ...: the result when nobody shares the pair, else a part.
  __device__ void Join(const PairCursor& pair, int first, int step) const {
    float* part = nullptr;
    if (!Whole(pair)) {
      const Parts parts = PartsOf(pair);
      part = Part(parts, static_cast<int>(blockIdx.x) - parts.first);
    }
    for (int row = first; row < rows.rows; row += step) {
      RowState<d> r = JoinStates<d, false>(
          shape.warps, [&](int w) { return State(w, row); }, [&](int w) { return StateTerms(w, row); }, lane);
      if (part == nullptr) {
        FinishRow<VL, d>(p, rows, pair.batch, pair.head, row, r, lane);
        continue;
      }
      StoreValues<d / 32>(part, Type::kF32, row * d + lane * (d / 32), r.acc);
      if (lane == 0) *reinterpret_cast<float2*>(part + shape.rows * d + 2 * row) = make_float2(r.m, r.l);
    }
  }

  // One thread, after the block's part is written: whether it was the pair's last one.
  __device__ bool Arrive(const PairCursor& pair) const {
    __threadfence();
    const int pairs = p.batch * p.pool.kv_heads;
    int32_t* counter = ws.counters + blockIdx.y * pairs + pair.batch * p.pool.kv_heads + pair.head;
    if (atomicAdd(counter, 1) != PartsOf(pair).count - 1) return false;
    *counter = 0;  // for the next launch
    __threadfence();
    return true;
  }

  __device__ RowState<d> JoinParts(const Parts& parts, int row, int from, int to) const {
    return JoinStates<d, true>(
        to - from, [&](int i) { return Part(parts, from + i) + row * d; },
        [&](int i) { return Part(parts, from + i) + shape.rows * d + 2 * row; }, lane);
  }
};

template <class KL, class VL, int d, int kRowTiles>
__global__ void __launch_bounds__(AttendConfig<KL, VL, d, kRowTiles>::kThreads, 1)
    AttendKernelBody(const __grid_constant__ AttendParams p, const __grid_constant__ AttendShape shape,
                     const __grid_constant__ Workspace ws) {
  using C = AttendConfig<KL, VL, d, kRowTiles>;
  extern __shared__ __align__(128) uint8_t memory[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, warps = shape.warps;
  const int kv_heads = p.pool.kv_heads, group = p.heads / kv_heads, all_rows = group * p.q_len;
  const int row0 = static_cast<int>(blockIdx.y) * shape.rows;
  const RowRange rows{row0, min(shape.rows, all_rows - row0), group};

  for (int b = static_cast<int>(blockIdx.x); b < p.batch; b += static_cast<int>(gridDim.x)) {  // empty sequences
    if (ws.sequences[b].count != 0) continue;
    for (int i = warp; i < kv_heads * rows.rows; i += warps + 1) {
      RowState<d> r{kEmpty, 0, {}};
      FinishRow<VL, d>(p, rows, b, i / rows.rows, i % rows.rows, r, lane);
    }
  }
  if (static_cast<int>(blockIdx.x) >= ws.header->ranges) return;

  const RangeStart range = ws.ranges[blockIdx.x];
  const AttendBlock<KL, VL, d, kRowTiles> block{
      p, ws, shape, range, rows, memory, typename C::Shared(warps, shape.slots, rows.rows), tid, lane, warp};
  if (tid == 0) {
    BarrierInit(block.Full(), warps);
    BarrierInit(block.Empty(), 1);
    BarrierInit(block.Query(0), 1);
    BarrierInit(block.Query(1), 1);
    block.Pending()[0] = 0;
  }
  PairCursor pair(range, kv_heads);
  int segment = 0;

  if (warp < warps) {
    typename C::Source source(p, ws.sequences, range, warp, warps,
                              SharedAddress(memory) + warp * shape.slots * C::Source::kTileBytes,
                              block.Barrier(warp * shape.slots), shape.slots, lane);
    block.Prepare(pair, 0, warp, warps + 1);
    __syncthreads();
    TileView view{0, 0, p.q_len, group, row0, p.window, p.softcap * kLog2E, nullptr};
    typename C::Math math;
    for (;; ++segment) {
      if (segment > 0) BarrierWait(block.Query(segment % 2), (segment - 1) / 2 % 2);
      math.Clear();
      math.LoadQuery(SharedAddress(memory + block.at.queries) + segment % 2 * C::kQueryBytes, block.Terms(segment % 2),
                     lane);
      view.length = pair.sequence.length;
      if (p.alibi_slopes != nullptr) view.alibi_slopes = p.alibi_slopes + pair.head * group;
      const int end = min(pair.end(), range.end);
#pragma unroll 1
      while (source.tile() < end) {
        view.first_token = (pair.sequence.first + source.tile() - pair.begin) * C::kTileTokens;
        const uint32_t tile = source.Wait();
        math.Step(tile, view, lane);
        source.Release();
      }
      if (segment > 0) BarrierWait(block.Empty(), (segment - 1) % 2);
#pragma unroll
      for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float l = math.l[nt][i];
#pragma unroll
          for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kFullWarp, l, lanes);
          const int row = 8 * nt + 2 * (lane % 4) + i;
          if (row >= rows.rows) continue;
          if (lane < 4) {
            *reinterpret_cast<float2*>(block.StateTerms(warp, row)) = make_float2(math.m[nt][i], l);
          }
          float* state = block.State(warp, row) + lane / 4;
#pragma unroll
          for (int s = 0; s < d / 16; ++s) {
            state[16 * s] = math.acc[nt][s][i];
            state[16 * s + 8] = math.acc[nt][s][i + 2];
          }
        }
      }
      if (pair.end() >= range.end) break;
      __syncwarp();
      if (lane == 0) BarrierArrive(block.Full());
      pair.Next(ws.sequences, kv_heads);
    }
  } else {
    block.Prepare(pair, 0, warp, warps + 1);
    __syncthreads();
    PairCursor ahead = pair;
    auto prepare_next = [&](int s) {  // of segment s; `ahead` stands at s - 1
      if (ahead.end() >= range.end) return;
      ahead.Next(ws.sequences, kv_heads);
      block.Prepare(ahead, s % 2, 0, 1);
      __syncwarp();
      if (lane == 0) BarrierArrive(block.Query(s % 2));
    };
    prepare_next(1);
    for (; pair.end() < range.end; ++segment) {
      BarrierWait(block.Full(), segment % 2);
      block.Join(pair, 0, 1);
      __syncwarp();
      if (lane == 0) BarrierArrive(block.Empty());
      prepare_next(segment + 2);
      if (pair.begin < range.begin) {  // shared with earlier blocks
        int last = lane == 0 ? block.Arrive(pair) : 0;
        last = __shfl_sync(kFullWarp, last, 0);
        const auto parts = block.PartsOf(pair);
        if (last != 0 && parts.count <= 4) {
          for (int row = 0; row < rows.rows; ++row) {
            RowState<d> r = block.JoinParts(parts, row, 0, parts.count);
            FinishRow<VL, d>(p, rows, pair.batch, pair.head, row, r, lane);
          }
        } else if (last != 0 && lane == 0) {
          block.Pending()[++block.Pending()[0]] = 0;  // the range's first pair
        }
      }
      pair.Next(ws.sequences, kv_heads);
    }
  }

  // The last pair: every warp has stopped there.
  __syncthreads();
  block.Join(pair, warp, warps + 1);
  __syncthreads();
  if (tid == 0 && !block.Whole(pair) && block.Arrive(pair)) {
    block.Pending()[++block.Pending()[0]] = 1;
  }
  __syncthreads();
  const int pending = block.Pending()[0];
  for (int i = 1; i <= pending; ++i) {
    const PairCursor joined = block.Pending()[i] == 1 ? pair : PairCursor(range, kv_heads);
    const auto parts = block.PartsOf(joined);
    const int teams = max(1, min(4, min((warps + 1) / rows.rows, parts.count)));  // of a row; each takes a run of parts
    for (int unit = warp; unit < teams * rows.rows; unit += warps + 1) {
      const int row = unit % rows.rows, team = unit / rows.rows;
      RowState<d> r = block.JoinParts(parts, row, parts.count * team / teams, parts.count * (team + 1) / teams);
      if (teams == 1) {
        FinishRow<VL, d>(p, rows, joined.batch, joined.head, row, r, lane);
        continue;
      }
      StoreValues<d / 32>(block.State(team, row), Type::kF32, lane * (d / 32), r.acc);
      if (lane == 0) *reinterpret_cast<float2*>(block.StateTerms(team, row)) = make_float2(r.m, r.l);
    }
    if (teams == 1) continue;
    __syncthreads();
    for (int row = warp; row < rows.rows; row += warps + 1) {
      RowState<d> r = JoinStates<d, false>(
          teams, [&](int w) { return block.State(w, row); }, [&](int w) { return block.StateTerms(w, row); }, lane);
      FinishRow<VL, d>(p, rows, joined.batch, joined.head, row, r, lane);
    }
    __syncthreads();
  }
}

}  // namespace tersekv::cuda
