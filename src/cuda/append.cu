// SPDX-License-Identifier: Apache-2.0
// Rows -> codes and scales -> pages. A warp takes eight tokens of one KV head and side at a time, four lanes a row.
// Eight tokens that fill half a block become whole words in registers and are written as such; others go in with
// atomics, since tokens share words. Compiled without contraction.
#include <cuda_runtime.h>

#include <algorithm>

#include "src/cuda/append_write.cuh"
#include "src/cuda/launch.h"
#include "src/cuda/quantise.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kResident = 4;  // thread blocks of head_dim up to 128 a multiprocessor; 5 and 6 spill: 1.2 times slower
constexpr int kMostBlocks = 2112;  // of a launch: four times what is resident on 132; each goes on with the next tokens

struct Parameters : AppendParams {
  int page_shift;
};

// What all tokens of a thread block share: its KV head's statistics, means with the channel's sign; signs of channels
// 2 i and 2 i + 1 where a pair of bf16 has them.
template <int d>
struct HeadStats {
  float mean[d], inv_scale[d];
  uint4 sign[d / 8];
};

// A lane's values of a row as they are stored: 16-bit types are loaded a step ahead, all at once; fp32 is not.
template <int d>
struct RawRow {
  uint4 w[d / 32];

  __device__ __forceinline__ void Load(const Rows& rows, int64_t at) {
    if (rows.type == Type::kF32) return;
    const uint16_t* from = static_cast<const uint16_t*>(rows.data) + at;
#pragma unroll
    for (int k = 0; k < d / 32; ++k) w[k] = __ldcs(reinterpret_cast<const uint4*>(from + 32 * k));
  }
  // With signs; `at`: where the row is, for types that were not loaded.
  __device__ __forceinline__ void Widen(const Rows& rows, int64_t at, const HeadStats<d>& stats, int q,
                                        RowPart<d>& x) const {
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      const uint4 of = stats.sign[4 * k + q];
      const uint32_t sign[4] = {of.x, of.y, of.z, of.w};
      if (rows.type == Type::kF32) {
        const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + at + 32 * k);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float4 v = __ldcs(from + h);
          const uint32_t a = sign[2 * h], b = sign[2 * h + 1];
          x[k][4 * h] = Flip(v.x, a << 16), x[k][4 * h + 1] = Flip(v.y, a);
          x[k][4 * h + 2] = Flip(v.z, b << 16), x[k][4 * h + 3] = Flip(v.w, b);
        }
        continue;
      }
      const uint32_t pairs[4] = {w[k].x ^ sign[0], w[k].y ^ sign[1], w[k].z ^ sign[2], w[k].w ^ sign[3]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (rows.type == Type::kBF16) {
          x[k][2 * i] = __uint_as_float(pairs[i] << 16), x[k][2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        } else {
          const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
          x[k][2 * i] = v.x, x[k][2 * i + 1] = v.y;
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ float Flip(float v, uint32_t sign) {
    return __uint_as_float(__float_as_uint(v) ^ (sign & 0x80000000u));
  }
};

// Which of a step's eight tokens go where.
struct Step {
  int from;         // first of eight tokens whose slots fill half a block, in order; -1: none starts here
  uint32_t single;  // bit i: token first + i is in no such run
};
// Lane i has the slot of token first - 8 + i, -1 when there is none.
__device__ __forceinline__ Step FindStep(int first, int64_t slot, int lane) {
  const int64_t base = slot - lane + kStepRows, common = __shfl_sync(kFullWarp, base, kStepRows);
  const uint32_t equal = __ballot_sync(kFullWarp, base == common);
  if ((equal >> kStepRows & 0xffu) == 0xffu && common >= 0 && common % kStepRows == 0) return {first, 0};  // the rule
  const int64_t next = __shfl_down_sync(kFullWarp, slot, 1);
  uint32_t run = __ballot_sync(kFullWarp, lane < 31 && slot >= 0 && next == slot + 1);
  run &= run >> 1;
  run &= run >> 2;
  run &= run >> 3;  // seven links from here
  const uint32_t starts = run & __ballot_sync(kFullWarp, slot >= 0 && slot % kStepRows == 0);
  const uint32_t own = starts >> kStepRows & 0xffu;
  uint32_t covered = starts | starts << 1;
  covered |= covered << 2;
  covered |= covered << 4;
  const uint32_t there = __ballot_sync(kFullWarp, slot >= 0);
  return {own != 0 ? first + __ffs(static_cast<int>(own)) - 1 : -1, (there & ~covered) >> kStepRows & 0xffu};
}
__device__ __forceinline__ int64_t LoadSlot(const Parameters& p, int first, int lane) {
  const int token = first - kStepRows + lane;
  return token >= 0 && token < p.tokens ? p.slots[token] : -1;
}

__device__ __forceinline__ uint8_t* BlockOf(const Pool& pool, int64_t slot, int head, int page_shift) {
  const int64_t page = slot >> page_shift;
  const int64_t block = ((page * pool.kv_heads + head) << (page_shift - 4)) +
                        (static_cast<int>(slot) & (pool.page_tokens - 1)) / kBlockTokens;
  return pool.data + block * pool.block.bytes();
}

// A warp's place: rows of one KV head and side.
template <int d>
struct WarpRows {
  const Parameters& p;
  Kv side;
  int head, lane;
  const HeadStats<d>& stats;

  __device__ __forceinline__ const Rows& rows() const { return side == Kv::kK ? p.k : p.v; }
  __device__ __forceinline__ int64_t Offset(int first) const {
    const int token = min(first + lane / kRowLanes, p.tokens - 1);
    return token * rows().token_stride + head * rows().head_stride + 8 * (lane % kRowLanes);
  }
};

// Eight rows, signs applied; `active`: the lane's row is one that is asked for. The lane's codes; its row's scale.
template <int bits, int d>
__device__ __forceinline__ uint16_t Encode(const WarpRows<d>& of, const QuantiserTable<bits>& table, RowPart<d>& x,
                                           bool active, RowBytes<d>& codes) {
  const Parameters& p = of.p;
  const SideStats& given = of.side == Kv::kK ? p.pool.k : p.pool.v;
  const int q = of.lane % kRowLanes;
  float sum[8] = {};
  if (given.mean != nullptr) {
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[k][j] = x[k][j] - of.stats.mean[32 * k + 8 * q + j];
    }
  }
  if (given.inv_scale != nullptr) {
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[k][j] = x[k][j] * of.stats.inv_scale[32 * k + 8 * q + j];
    }
  }
#pragma unroll
  for (auto& v : x) {
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = sum[j] + v[j] * v[j];
  }
  float s2 = TreeSum(sum);
  if (!(s2 <= 0x1.fffffep127f)) {
    s2 = 0;
    if (p.not_finite != nullptr && active) *p.not_finite = 1;
  }
  const float s = sqrtf(s2);
  RowHadamard<d>(x, q);
  float product, n2, peak;
  const NormMode norm = of.side == Kv::kK ? p.k_norm : p.v_norm;
  QuantiseRows<bits, d>(x, s, table, norm == NormMode::kLs || norm == NormMode::kMatch, codes, &product, &n2, &peak);
  constexpr LevelTable kTable = LevelsOf(bits);
  const float g = LloydMaxScale(kTable, norm, s2, s, sqrtf(static_cast<float>(d)), product, n2, peak);
  return F32ToBF16(g < 0x1.fep127f ? g : 0x1.fep127f);  // saturates at bf16's largest
}

// The passes of a warp over tokens 8 w, 8 (w + warps), ...: the run that starts in eight tokens, then what is left.
class Passes {
 public:
  __device__ __forceinline__ Passes(const Parameters& p, int warp, int warps, int lane)
      : p_(p), lane_(lane), stride_(warps * kStepRows), first_((warp - warps) * kStepRows) {
    next_slot_ = LoadSlot(p_, first_ + stride_, lane_);
    Next();
  }
  __device__ __forceinline__ bool done() const { return first_ >= p_.tokens; }
  __device__ __forceinline__ bool run() const { return step_.from >= 0; }
  __device__ __forceinline__ int from() const { return run() ? step_.from : first_; }
  // Slot of the lane's row, or of the run's first; below 0: the row is not asked for.
  __device__ __forceinline__ int64_t slot() const {
    const int64_t to = __shfl_sync(kFullWarp, slot_, from() - first_ + kStepRows + (run() ? 0 : lane_ / kRowLanes));
    return run() || (step_.single >> (lane_ / kRowLanes) & 1u) != 0 ? to : -1;
  }
  __device__ __forceinline__ void Next() {
    if (run() && step_.single != 0) {
      step_.from = -1;
      return;
    }
#pragma unroll 1
    do {
      first_ += stride_;
      slot_ = next_slot_;
      next_slot_ = LoadSlot(p_, first_ + stride_, lane_);  // a step ahead
      step_ = FindStep(first_, slot_, lane_);
    } while (!done() && !run() && step_.single == 0);
  }

 private:
  const Parameters& p_;
  int lane_, stride_, first_;
  int64_t slot_ = -1, next_slot_;
  Step step_{-1, 0};
};

template <int bits, int d>
__device__ __forceinline__ void AppendSide(const WarpRows<d>& of, int warp, int warps) {
  const QuantiserTable<bits> table(of.lane);
  const BlockLayout& layout = of.p.pool.block;
  Passes pass(of.p, warp, warps, of.lane);
  if (pass.done()) return;
  RawRow<d> raw;
  int64_t at = of.Offset(pass.from());
  raw.Load(of.rows(), at);
#pragma unroll 1
  while (!pass.done()) {
    const bool run = pass.run();
    const int64_t slot = pass.slot();
    RowPart<d> x;
    raw.Widen(of.rows(), at, of.stats, of.lane % kRowLanes, x);
    pass.Next();
    at = of.Offset(pass.from());
    raw.Load(of.rows(), at);  // the last token's once more at the end
    uint8_t* block = slot >= 0 ? BlockOf(of.p.pool, slot, of.head, of.p.page_shift) : nullptr;
    const int place = static_cast<int>(slot) & (kBlockTokens - 1);
    RowBytes<d> codes;
    const uint16_t scale = Encode<bits, d>(of, table, x, slot >= 0, codes);
    if (run) {
      WriteRun<bits, d>(of.side, layout, block, place, codes, scale, of.lane);
    } else {
      WriteSingle<bits, d>(of.side, layout, block, place, codes, scale, of.lane);
    }
  }
}

// Raw types: values as they are, one a thread; nobody shares them.
template <int d>
__device__ __forceinline__ void AppendRaw(const Parameters& p, Kv side, int head, int warp, int warps, int lane) {
  const Rows& rows = side == Kv::kK ? p.k : p.v;
#pragma unroll 1
  for (int token = warp; token < p.tokens; token += warps) {
    const int64_t slot = p.slots[token];
    if (slot < 0) continue;
    uint8_t* codes = BlockOf(p.pool, slot, head, p.page_shift) + p.pool.block.codes(side);
    for (int channel = 2 * lane; channel < d; channel += 64) {
      float v[2];
      LoadValues<2>(rows.data, rows.type, token * rows.token_stride + head * rows.head_stride + channel, v);
      for (int j = 0; j < 2; ++j) {
        const Place to = PlaceOf(side, static_cast<int>(slot % kBlockTokens), channel + j);
        const uint16_t value = p.pool.bf16 ? F32ToBF16(v[j]) : F32ToF16(v[j]);
        ForEachPiece(kRawBits, side, to.unit, to.e, [&](int word, int bit, int, int) {
          uint8_t* at = codes + to.group * GroupBytes(kRawBits) + WordOffset(kRawBits, to.lane, word) + bit / 8;
          *reinterpret_cast<uint16_t*>(at) = value;
        });
      }
    }
  }
}

template <int d>
__device__ __forceinline__ void LoadStats(const Parameters& p, Kv side, int head, HeadStats<d>* to) {
  const SideStats& from = side == Kv::kK ? p.pool.k : p.pool.v;
  for (int c = static_cast<int>(threadIdx.x); c < d; c += kWarps * 32) {
    const uint64_t word = SignWord(p.pool.seed, p.pool.layer, head, side == Kv::kV, c / 64);
    const uint32_t sign = static_cast<uint32_t>(word >> (c % 64));
    if (from.mean != nullptr) to->mean[c] = FlipSign(from.mean[head * d + c], sign & 1u);
    if (from.inv_scale != nullptr) to->inv_scale[c] = from.inv_scale[head * d + c];
    if (c % 2 == 0) reinterpret_cast<uint32_t*>(to->sign)[c / 2] = (sign & 1u) << 15 | (sign & 2u) << 30;
  }
  __syncthreads();
}

// grid: (kv_heads, K and V, warps of a head and side / kWarps).
template <int d>
__global__ void __launch_bounds__(kWarps * 32, d <= 128 ? kResident : kResident / 2)
    AppendKernel(const __grid_constant__ Parameters p) {
  __shared__ __align__(16) HeadStats<d> stats;
  const int lane = static_cast<int>(threadIdx.x % 32), head = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(blockIdx.z * kWarps + threadIdx.x / 32),
            warps = static_cast<int>(gridDim.z) * kWarps;
  const Kv side = blockIdx.y == 0 ? Kv::kK : Kv::kV;
  LoadStats<d>(p, side, head, &stats);
  const WarpRows<d> rows{p, side, head, lane, stats};
  switch (p.pool.block.bits(side)) {
    case 2:
      return AppendSide<2, d>(rows, warp, warps);
    case 3:
      return AppendSide<3, d>(rows, warp, warps);
    case 4:
      return AppendSide<4, d>(rows, warp, warps);
    case 5:
      return AppendSide<5, d>(rows, warp, warps);
    case 6:
      return AppendSide<6, d>(rows, warp, warps);
    case 8:
      return AppendSide<8, d>(rows, warp, warps);
    default:
      return AppendRaw<d>(p, side, head, warp, warps, lane);
  }
}

}  // namespace

Status LaunchAppend(const AppendParams& p, void* stream) {
  int page_shift = 4;
  while (1 << page_shift < p.pool.page_tokens) ++page_shift;
  const int steps = (p.tokens + kStepRows - 1) / kStepRows;
  const int most = std::max(1, kMostBlocks / (2 * p.pool.kv_heads));
  const dim3 grid(static_cast<unsigned>(p.pool.kv_heads), 2,
                  static_cast<unsigned>(std::min((steps + kWarps - 1) / kWarps, most)));
  return ForHeadDim(p.pool.block.d, "append", [&]<int d>() {
    AppendKernel<d><<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>({p, page_shift});
  });
}

}  // namespace tersekv::cuda
