// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows over a packed, paged history: one thread block a multiprocessor, each with a range of
// tiles (plan.cuh). Workers multiply tiles on their own; at the end of a pair each hands over its state, and four more
// warps, the servers, join them and prepare queries while the workers go on with the next pair. Parts of a pair that
// several blocks share meet in the workspace, and the block that comes last joins them, in the order of the parts.
#pragma once

#include <type_traits>

#include "src/cuda/attend_launch.h"
#include "src/cuda/attend_raw.cuh"
#include "src/cuda/attend_rows.cuh"
#include "src/cuda/attend_source.cuh"

namespace tersekv::cuda {

template <class KL, class VL, int d, int kRowTiles, bool kRaw>
struct AttendConfig {
  using Values = VL;
  static constexpr int kRowTileCount = kRowTiles;
  static constexpr bool kHasRaw = kRaw;
  static constexpr BlockLayout kLayout{KL::kBits, VL::kBits, d};
  static constexpr int kTileLimit = 8704;  // bytes
  static constexpr int kBlocks = 4 * kLayout.bytes() <= kTileLimit ? 4 : 2 * kLayout.bytes() <= kTileLimit ? 2 : 1;
  static constexpr int kTileTokens = kBlocks * kBlockTokens;
  static constexpr int kWorkers = d <= 128 && kRowTiles == 1 ? 12 : 8, kServers = 4;
  static constexpr int kThreads = 32 * (kWorkers + kServers);
  static constexpr int kWorkersDone = 1, kServersReady = 2, kBarriersReady = 3;  // named barriers
  // A multiprocessor has 65,536 registers; what servers leave, workers take.
  static constexpr int kServerRegisters = 72;
  static constexpr int kWorkerRegisters = (65536 / 32 - kServers * kServerRegisters) / kWorkers / 8 * 8;
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kStateStride = d + 4;  // floats of a row, padded against bank conflicts
  using Math = TileMath<KL, VL, d, kRowTiles, kBlocks>;
  using Source = TileSource<kTileTokens, kLayout.bytes(), kRaw>;
  static constexpr int kStateTerms = StateTermFloats(kRaw);

  // Offsets in the block's shared memory.
  struct Shared {
    int states, state_terms, queries, terms, barriers, bytes;
    constexpr Shared(int warps, int slots, int rows)
        : states(warps * slots * Source::kTileBytes),
          state_terms(states + warps * rows * kStateStride * 4),
          queries((state_terms + warps * rows * kStateTerms * 4 + 15) / 16 * 16),
          terms(queries + 2 * rows * Math::kQueryStride),
          barriers(terms + 2 * rows * static_cast<int>(sizeof(RowTerms))),
          bytes(barriers + 8 * (warps * slots + 4)) {}
  };
};

// A thread block's view of its work.
template <class KL, class VL, int d, int kRowTiles, bool kRaw>
struct AttendBlock {
  using C = AttendConfig<KL, VL, d, kRowTiles, kRaw>;

  const AttendParams& p;
  const Workspace& ws;
  const AttendShape& shape;
  const RangeStart& range;
  RowRange rows;
  uint8_t* memory;
  typename C::Shared at;
  int lane, warp;

  __device__ float* State(int w, int row) const {
    return reinterpret_cast<float*>(memory + at.states) + (w * rows.rows + row) * C::kStateStride;
  }
  __device__ float* StateTerms(int w, int row) const {
    return reinterpret_cast<float*>(memory + at.state_terms) + (w * rows.rows + row) * C::kStateTerms;
  }
  __device__ RowTerms* Terms(int buffer) const {
    return reinterpret_cast<RowTerms*>(memory + at.terms) + buffer * rows.rows;
  }
  __device__ uint8_t* Queries(int buffer) const {
    return memory + at.queries + buffer * rows.rows * C::Math::kQueryStride;
  }
  __device__ uint32_t Barrier(int i) const { return SharedAddress(memory + at.barriers) + 8 * i; }
  __device__ uint32_t Shared(int i) const { return Barrier(shape.warps * shape.slots + i); }
  __device__ uint32_t Full() const { return Shared(0); }   // all states of a pair are there
  __device__ uint32_t Empty() const { return Shared(1); }  // they have been read
  __device__ uint32_t Query(int buffer) const { return Shared(2 + buffer); }

  __device__ void InitBarriers() const {
    BarrierInit(Full(), 32 * shape.warps);  // every thread arrives for what it has written or read itself
    BarrierInit(Empty(), 32 * C::kServers);
    for (int i = 0; i < 2; ++i) BarrierInit(Query(i), 32 * C::kServers);
  }

  // Rows first, first + step, ... of a pair's queries.
  __device__ __forceinline__ void Prepare(const PairCursor& pair, int buffer, int first, int step) const {
#pragma unroll 1
    for (int row = first; row < rows.rows; row += step) {
      PrepareQuery<KL, d>(p, rows, pair.batch, pair.head, row, Queries(buffer) + row * C::Math::kQueryStride,
                          Terms(buffer) + row, lane);
    }
  }

  __device__ float* Part(const PairParts& parts, int k) const {
    const int slot = 2 * (parts.first + k) + (k == 0 ? parts.second_slot : 0);
    return ws.parts + (static_cast<size_t>(blockIdx.y) * 2 * shape.blocks + slot) * PartFloats(shape.rows, d, kRaw);
  }

  // The whole warp, after its row of the block's part is written: whether it was the pair's last.
  __device__ bool Arrive(const PairCursor& pair, const PairParts& parts, int row) const {
    int last = 0;
    __syncwarp();
    if (lane == 0) {
      __threadfence();
      const int pairs = p.batch * p.pool.kv_heads, index = pair.batch * p.pool.kv_heads + pair.head;
      int32_t* counter = ws.counters + (static_cast<int>(blockIdx.y) * pairs + index) * shape.rows + row;
      last = atomicAdd(counter, 1) == parts.count - 1 ? 1 : 0;
      if (last != 0) *counter = 0;  // for the next launch
      __threadfence();
    }
    last = __shfl_sync(kFullWarp, last, 0);
    __syncwarp();
    return last != 0;
  }

  // Joins the warps' states of rows first, first + step, ...: the result when nobody shares the pair; else a part, and
  // the block that brings the last one joins them. `read`: a barrier to arrive at when the states have been read, or 0.
  __device__ __forceinline__ void Join(const PairCursor& pair, const PairParts& parts, int first, int step,
                                       uint32_t read) const {
    if (read != 0 && first >= rows.rows) BarrierArrive(read);
    const bool whole = pair.begin >= range.begin && pair.end() <= range.end;
#pragma unroll 1
    for (int row = first; row < rows.rows; row += step) {
      RowState<d> r = JoinStates<d, kRaw, false>(
          shape.warps, [&](int w) { return State(w, row); }, [&](int w) { return StateTerms(w, row); }, lane);
      if (read != 0 && row + step >= rows.rows) BarrierArrive(read);
      if (!whole) {
        float* part = Part(parts, static_cast<int>(blockIdx.x) - parts.first);
        StoreRow<d>(part, Type::kF32, row * d, lane, r.acc);
        float* terms = part + shape.rows * d + C::kStateTerms * row;
        if (lane == 0) *reinterpret_cast<float2*>(terms) = make_float2(r.m, r.l);
        if (kRaw && lane == 0) terms[2] = r.packed;
        if (!Arrive(pair, parts, row)) continue;
        r = JoinStates<d, kRaw, true>(
            parts.count, [&](int i) { return Part(parts, i) + row * d; },
            [&](int i) { return Part(parts, i) + shape.rows * d + C::kStateTerms * row; }, lane);
      }
      FinishRow<VL, d>(p, rows, pair.batch, pair.head, row, r, lane);
    }
  }

  // The warp's state becomes its state in shared memory; `more`: joins what is there of the pair.
  template <bool kPacked, class Math>
  __device__ __forceinline__ void HandOver(const Math& math, bool more) const {
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float l = math.l[nt][i];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kFullWarp, l, lanes);
        const int row = 8 * nt + 2 * (lane % 4) + i;
        float2* terms = reinterpret_cast<float2*>(StateTerms(warp, min(row, rows.rows - 1)));
        float* state = State(warp, min(row, rows.rows - 1)) + lane / 4;
        if ((C::Math::kValueBytes || kRaw) && kPacked && more) {
          __syncwarp();
          const float2 there = *terms;
          const float m = fmaxf(math.m[nt][i], there.x), old = Exp2(there.x - m), own = Exp2(math.m[nt][i] - m);
          const float packed = kRaw ? l * own + reinterpret_cast<const float*>(terms)[2] * old : 0.0f;
          __syncwarp();
          if (lane < 4 && row < rows.rows) *terms = make_float2(m, l * own + there.y * old);
          if (kRaw && lane < 4 && row < rows.rows) reinterpret_cast<float*>(terms)[2] = packed;
#pragma unroll
          for (int s = 0; s < d / 8; ++s) {
            const float value = math.Value(nt, s / 2, i + s % 2 * 2);
            if (row < rows.rows) state[8 * s] = value * own + state[8 * s] * old;
          }
          continue;
        }
        if (lane < 4 && row < rows.rows) *terms = make_float2(math.m[nt][i], l);
        if (kRaw && lane < 4 && row < rows.rows) reinterpret_cast<float*>(terms)[2] = kPacked ? l : 0.0f;
#pragma unroll
        for (int s = 0; s < d / 16; ++s) {
          const float first = math.Value(nt, s, i), second = math.Value(nt, s, i + 2);
          if (row >= rows.rows) continue;
          state[16 * s] = first;
          state[16 * s + 8] = second;
        }
      }
    }
  }

  // The warp's raw tiles of the pair: i, i + warps, ... below `stop`. Their state is handed over.
  template <bool kBf16>
  __device__ __forceinline__ void AddRaw(const PairCursor& pair, const RawTiles& tiles, int from, int i, int stop,
                                         int segment) const {
    using Raw = RawLoader<kBf16>;
    using Math = TileMath<Raw, Raw, d, kRowTiles, 1>;
    Math math;
    math.Clear();
    LoadRawQuery<Math, d>(p, rows, pair.batch, pair.head, &math, lane);
    RawView view{{0, pair.sequence.length, p.q_len, rows.group, rows.row0, p.window, shape.softcap,
                  shape.two_over_softcap, nullptr},
                 p.raw,
                 from};
    if (p.alibi_slopes != nullptr) view.alibi_slopes = p.alibi_slopes + pair.head * rows.group;
#pragma unroll 1
    for (; i < stop; i += shape.warps) {
      view.first_token = tiles.FirstToken(i);
      math.Step(RawBlock(p, pair.batch, pair.head, view.first_token, Math::kLayout.bytes()), view, lane);
    }
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) ToPackedSpace<VL, d>(p.pool, pair.head, math.acc[nt], lane);
    if (segment > 0) BarrierWait(Empty(), (segment - 1) % 2);
    HandOver<false>(math, false);
  }
  // The warp's share of them; whether there were any. turn: raw tiles until its next.
  __device__ __forceinline__ bool WorkRaw(const PairCursor& pair, int from, int segment, int* turn) const {
    const RawTiles tiles(p, pair.sequence.length, from);
    const int count = pair.sequence.count;
    const int first = tiles.Before(max(range.begin - pair.begin, 0), count);
    const int stop = tiles.Before(min(range.end - pair.begin, count), count), start = first + *turn;
    const int n = stop > start ? (stop - start + shape.warps - 1) / shape.warps : 0;
    *turn = start + n * shape.warps - stop;
    if (n == 0) return false;
    if (p.raw.bf16) {
      AddRaw<true>(pair, tiles, from, start, stop, segment);
    } else {
      AddRaw<false>(pair, tiles, from, start, stop, segment);
    }
    return true;
  }

  __device__ __forceinline__ auto MakeView() const {
    const TileView view{0, 0, p.q_len, rows.group, rows.row0, p.window, shape.softcap, shape.two_over_softcap, nullptr};
    if constexpr (kRaw) {
      return PackedView{view, p.raw, 0};
    } else {
      return view;
    }
  }
  // A worker's tiles, pair by pair; returns the last pair, whose states are in shared memory.
  __device__ __forceinline__ PairCursor Work() const;
  // The servers' part: queries, and all pairs but the last.
  __device__ __forceinline__ void Serve() const;
};

template <class KL, class VL, int d, int kRowTiles, bool kRaw>
__device__ __forceinline__ PairCursor AttendBlock<KL, VL, d, kRowTiles, kRaw>::Work() const {
  const int warps = shape.warps, kv_heads = p.pool.kv_heads;
  PairCursor pair(range);
  if (warp >= warps) {  // left over: joins states only
    NamedBarrier(C::kBarriersReady, C::kThreads);
    while (pair.end() < range.end) pair.Next(ws.sequences, kv_heads);
    return pair;
  }
  typename C::Source source(p, ws.sequences, range, warp, warps,
                            SharedAddress(memory) + warp * shape.slots * C::Source::kTileBytes,
                            Barrier(warp * shape.slots), shape.slots, lane);
  NamedBarrier(C::kBarriersReady, C::kThreads);
  std::conditional_t<kRaw, PackedView, TileView> view = MakeView();
  typename C::Math math;
  int turn = warps - 1 - warp;  // the last warps first: they have the fewest packed tiles
  for (int segment = 0;; ++segment) {
    bool handed = false;
    if constexpr (kRaw) {  // before the first query is there
      view.from = p.raw.begin != nullptr ? p.raw.begin[pair.batch] : 0;
      handed = WorkRaw(pair, view.from, segment, &turn);
    }
    BarrierWait(Query(segment % 2), segment / 2 % 2);
    math.Clear();
    math.LoadQuery(SharedAddress(Queries(segment % 2)), Terms(segment % 2), rows.rows, lane);
    view.length = pair.sequence.length;
    if (p.alibi_slopes != nullptr) view.alibi_slopes = p.alibi_slopes + pair.head * rows.group;
    const int end = min(pair.end(), range.end);
    for (bool more = handed;; more = true) {
      const int stop = C::Math::kValueBytes ? min(source.tile() + C::Math::kMostSteps * warps, end) : end;
#pragma unroll 1
      while (source.tile() < stop) {
        view.first_token = (pair.sequence.first + source.tile() - pair.begin) * C::kTileTokens;
        if constexpr (kRaw) view.first_token += p.raw.sink;
        math.Step(source.Wait(), view, lane);
        source.Release();
      }
      if (segment > 0 && !more) BarrierWait(Empty(), (segment - 1) % 2);
      HandOver<true>(math, more);
      if (source.tile() >= end) break;
      math.Clear();
    }
    if (pair.end() >= range.end) break;
    BarrierArrive(Full());
    pair.Next(ws.sequences, kv_heads);
  }
  return pair;
}

template <class KL, class VL, int d, int kRowTiles, bool kRaw>
__device__ __forceinline__ void AttendBlock<KL, VL, d, kRowTiles, kRaw>::Serve() const {
  const int server = warp - C::kWorkers, kv_heads = p.pool.kv_heads;
  if (warp == C::kWorkers && lane == 0) InitBarriers();
  NamedBarrier(C::kServersReady, 32 * C::kServers);
  NamedBarrierArrive(C::kBarriersReady, C::kThreads);  // workers are not waited for: the first query is urgent
  PairCursor pair(range), ahead(range);
  bool more = true;  // `ahead` needs its query
  // Two queries are ready ahead: a buffer is free again when the states of its pair are there.
#pragma unroll 1
  for (int segment = -2; segment < 0 || pair.end() < range.end; ++segment) {
    if (segment >= 0) {
      BarrierWait(Full(), segment % 2);
      Join(pair, range.head_parts, server, C::kServers, Empty());
      pair.Next(ws.sequences, kv_heads);
    }
    if (!more) continue;
    Prepare(ahead, segment & 1, server, C::kServers);
    BarrierArrive(Query(segment & 1));
    more = ahead.end() < range.end;
    if (more) ahead.Next(ws.sequences, kv_heads);
  }
}

template <class KL, class VL, int d, int kRowTiles, bool kRaw>
__global__ void __launch_bounds__(AttendConfig<KL, VL, d, kRowTiles, kRaw>::kThreads, 1)
    AttendKernelBody(const __grid_constant__ AttendParams p, const __grid_constant__ AttendShape shape,
                     const __grid_constant__ Workspace ws) {
  using C = AttendConfig<KL, VL, d, kRowTiles, kRaw>;
  extern __shared__ __align__(128) uint8_t memory[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const RangeStart range = ws.ranges[blockIdx.x];
  const int group = p.heads / p.pool.kv_heads, row0 = static_cast<int>(blockIdx.y) * shape.rows;
  const RowRange rows{row0, min(shape.rows, group * p.q_len - row0), group};
  const AttendBlock<KL, VL, d, kRowTiles, kRaw> block{
      p, ws, shape, range, rows, memory, typename C::Shared(shape.warps, shape.slots, rows.rows), lane, warp};
  if (range.begin < range.end) {
    if (warp < C::kWorkers) {
      SetRegisters<C::kWorkerRegisters, true>();
      const PairCursor last = block.Work();
      NamedBarrier(C::kWorkersDone, 32 * C::kWorkers);
      block.Join(last, range.tail_parts, warp, C::kWorkers, 0);
    } else {
      SetRegisters<C::kServerRegisters, false>();
      block.Serve();
    }
  }
  if (warp >= C::kWorkers) return;
  for (int b = static_cast<int>(blockIdx.x); b < p.batch; b += static_cast<int>(gridDim.x)) {  // empty sequences
    if (ws.sequences[b].count != 0) continue;
    for (int i = warp; i < p.pool.kv_heads * rows.rows; i += C::kWorkers) {
      RowState<d> r{kEmpty, 0, 0, {}};
      FinishRow<VL, d>(p, rows, b, i / rows.rows, i % rows.rows, r, lane);
    }
  }
}

}  // namespace tersekv::cuda
