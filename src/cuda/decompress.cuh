// SPDX-License-Identifier: Apache-2.0
// Where a warp's tokens are, and how words come from pages and values go to rows.
#pragma once

#include "src/cuda/levels.cuh"
#include "src/cuda/params.h"

namespace tersekv::cuda {

struct DecompressLaunch : DecompressParams {
  int page_shift = 4, steps;  // steps: 16 tokens each, of all sequences

  explicit DecompressLaunch(const DecompressParams& p)
      : DecompressParams(p), steps((p.tokens + kBlockTokens - 1) / kBlockTokens * (p.slots != nullptr ? 1 : p.batch)) {
    while (1 << page_shift < p.pool.page_tokens) ++page_shift;
  }
};

// A level + 128 as second byte of the float 2^15 adds as much to it.
inline constexpr float kLevelLift = 0x1p15f + 128;
__device__ __forceinline__ float LiftedLevel(uint32_t bytes, int i) {
  return __uint_as_float(Permute(bytes, 0x47000000u, 0x7404 + (i << 4)));
}

// What a warp decodes at a time: a block that starts in 16 tokens, and those of them that are in none.
struct Step {
  const uint8_t* block;  // null: there is none
  int batch, row;        // where its first token goes
  int rows;              // of a range: tokens that there are; the others become zeros
  uint32_t singles;      // of slots: bit i: token 16 step + i lies alone
};

// A warp's place: one KV head and side.
struct WarpPlace {
  const DecompressLaunch& p;
  Kv side;
  int head, lane;

  __device__ __forceinline__ const Rows& rows() const { return side == Kv::kK ? p.k : p.v; }
  __device__ __forceinline__ const uint8_t* BlockOf(int64_t slot) const {
    const Pool& pool = p.pool;
    const int64_t block = (((slot >> p.page_shift) * pool.kv_heads + head) << (p.page_shift - 4)) +
                          (static_cast<int>(slot) & (pool.page_tokens - 1)) / kBlockTokens;
    return pool.data + block * pool.block.bytes();
  }
  __device__ __forceinline__ int64_t Slot(int token) const {
    return token >= 0 && token < p.tokens ? p.slots[token] : -1;
  }

  __device__ __forceinline__ Step Find(int step) const {
    if (p.slots == nullptr) {
      const int each = (p.tokens + kBlockTokens - 1) / kBlockTokens, batch = step / each;
      const int row = (step - batch * each) * kBlockTokens, token = p.first + row;
      const int rows = min(kBlockTokens, p.lengths[batch] - token);
      const uint8_t* block = nullptr;
      if (rows > 0) {
        const int64_t page = p.block_table[batch * p.table_stride + (token >> p.page_shift)];
        if (page >= 0) block = BlockOf((page << p.page_shift) + (token & (p.pool.page_tokens - 1)));
      }
      return {block, batch, row, block != nullptr ? rows : 0, 0};
    }
    return FindBlock(step * kBlockTokens);
  }

  // Of slots: the block whose 16 tokens, in order, start in tokens first ... first + 15.
  __device__ __forceinline__ Step FindBlock(int first) const {
    const int64_t slot = Slot(first - kBlockTokens + lane);  // lane i has token first - 16 + i
    const int64_t base = slot - lane + kBlockTokens, common = __shfl_sync(kFullWarp, base, kBlockTokens);
    const uint32_t equal = __ballot_sync(kFullWarp, base == common);
    if (equal >> kBlockTokens == 0xffffu && common >= 0 && common % kBlockTokens == 0) {  // the rule
      return {BlockOf(common), 0, first, kBlockTokens, 0};
    }
    const int64_t later = Slot(lane < kBlockTokens ? first + kBlockTokens + lane : -1);
    int64_t next = __shfl_down_sync(kFullWarp, slot, 1);
    const int64_t last = __shfl_sync(kFullWarp, later, 0), later_next = __shfl_down_sync(kFullWarp, later, 1);
    if (lane == 31) next = last;
    uint64_t run = __ballot_sync(kFullWarp, slot >= 0 && next == slot + 1);
    run |= static_cast<uint64_t>(__ballot_sync(kFullWarp, later >= 0 && later_next == later + 1)) << 32;
    run &= run >> 1;
    run &= run >> 2;
    run &= run >> 4;
    run &= run >> 7;  // fifteen links from here
    const uint32_t starts =
        static_cast<uint32_t>(run) & __ballot_sync(kFullWarp, slot >= 0 && slot % kBlockTokens == 0);
    uint32_t covered = starts | starts << 1;
    covered |= covered << 2;
    covered |= covered << 4;
    covered |= covered << 8;
    const uint32_t singles = (__ballot_sync(kFullWarp, slot >= 0) & ~covered) >> kBlockTokens;
    if (starts >> kBlockTokens == 0) return {nullptr, 0, first, 0, singles};
    const int at = __ffs(static_cast<int>(starts >> kBlockTokens)) - 1;
    return {BlockOf(__shfl_sync(kFullWarp, slot, kBlockTokens + at)), 0, first + at, kBlockTokens, singles};
  }

  __device__ __forceinline__ int64_t Offset(int batch, int row) const {
    return batch * rows().batch_stride + row * rows().token_stride + head * rows().head_stride;
  }
};

// Eight values at element `at`.
__device__ __forceinline__ void StoreEight(const Rows& rows, int64_t at, const float (&v)[8]) {
  if (rows.type == Type::kF32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(rows.data) + at);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = rows.type == Type::kF16 ? Bits(__floats2half2_rn(v[2 * i], v[2 * i + 1]))
                                   : Bits(__floats2bfloat162_rn(v[2 * i], v[2 * i + 1]));
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(rows.data) + at) = make_uint4(w[0], w[1], w[2], w[3]);
}

}  // namespace tersekv::cuda
