// SPDX-License-Identifier: Apache-2.0
// Pages -> rows, bit-equal to VectorCodec::Decode. A warp takes 16 tokens of one KV head and side at a time: the words
// of a block are loaded whole and become rows in registers, four lanes a row; codes of tokens that are not with all
// others of their block are read one by one. Compiled without contraction.
#include <cuda_runtime.h>

#include <algorithm>

#include "src/cuda/decompress.cuh"
#include "src/cuda/launch.h"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kResident = 4;       // thread blocks of head_dim up to 128 a multiprocessor
constexpr int kMostBlocks = 2112;  // of a launch: four times what is resident on 132; each goes on with the next tokens

__constant__ const LevelTable kLevels[] = {LevelsOf(2), LevelsOf(3), LevelsOf(4), LevelsOf(5),
                                           LevelsOf(6), LevelsOf(7), LevelsOf(8)};

// Channel scales with the channel's sign, and means; neutral where there are none.
template <int d>
struct HeadStats {
  float scale[d], mean[d];
};

__device__ __forceinline__ uint32_t ReadCode(const BlockLayout& layout, Kv side, const uint8_t* block, int token,
                                             int channel) {
  const int bits = layout.bits(side);
  const Place at = PlaceOf(side, token, channel);
  const uint8_t* group = block + layout.codes(side) + at.group * GroupBytes(bits);
  uint32_t code = 0;
  ForEachPiece(bits, side, at.unit, at.e, [&](int word, int bit, int width, int shift) {
    const uint32_t w = *reinterpret_cast<const uint32_t*>(group + WordOffset(bits, at.lane, word));
    code |= (w >> bit & ((1u << width) - 1)) << shift;
  });
  return code;
}

// What becomes of a lane's row.
enum class Fate { kStored, kZero, kLeftOut };

// Level bytes of eight rows -> values, from element `to` on. All lanes call it.
template <int d>
__device__ __forceinline__ void EmitRows(const WarpPlace& of, const HeadStats<d>& stats, const RowBytes<d>& levels,
                                         float scale, Fate fate, int64_t to) {
  const int q = of.lane % kRowLanes;
  RowPart<d> x;
#pragma unroll
  for (int k = 0; k < d / 32; ++k) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[k][j] = scale * (LiftedLevel(levels[k][j / 4], j % 4) - kLevelLift);
    }
  }
  RowHadamard<d, true>(x, q);
  const float inv_sqrt_d = 1.0f / sqrtf(static_cast<float>(d));
#pragma unroll
  for (int k = 0; k < d / 32; ++k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int channel = 32 * k + 8 * q + 4 * h;
      const float4 s = *reinterpret_cast<const float4*>(&stats.scale[channel]);
      const float4 m = *reinterpret_cast<const float4*>(&stats.mean[channel]);
      float* v = &x[k][4 * h];
      v[0] = v[0] * inv_sqrt_d * s.x + m.x, v[1] = v[1] * inv_sqrt_d * s.y + m.y;
      v[2] = v[2] * inv_sqrt_d * s.z + m.z, v[3] = v[3] * inv_sqrt_d * s.w + m.w;
    }
  }
  if (fate == Fate::kLeftOut) return;
#pragma unroll
  for (int k = 0; k < d / 32; ++k) {
    if (fate == Fate::kZero) {
#pragma unroll
      for (float& v : x[k]) v = 0;
    }
    StoreEight(of.rows(), to + 32 * k + 8 * q, x[k]);
  }
}

__device__ __forceinline__ float ScaleOf(const WarpPlace& of, const uint8_t* block, int place) {
  return BF16ToF32(reinterpret_cast<const uint16_t*>(block + of.p.pool.block.scales(of.side))[place]);
}

// Of tokens row ... row + 15 those of the mask, from anywhere.
template <int d>
__device__ __forceinline__ void EmitSingles(const WarpPlace& of, const HeadStats<d>& stats, int row, uint32_t mask) {
  const int q = of.lane % kRowLanes, bits = of.p.pool.block.bits(of.side);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if ((mask >> (kStepRows * i) & 0xffu) == 0) continue;
    const int within = kStepRows * i + of.lane / kRowLanes, token = row + within;
    const int64_t slot = (mask >> within & 1u) != 0 ? of.Slot(token) : -1;
    const int64_t from = slot < 0 ? 0 : slot;  // some row: it is not stored
    const uint8_t* block = of.BlockOf(from);
    const int place = static_cast<int>(from % kBlockTokens);
    RowBytes<d> levels;
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t four = 0;
#pragma unroll 1
        for (int b = 0; b < 4; ++b) {
          const int channel = 32 * k + 8 * q + 4 * h + b;
          const int stored = static_cast<int>(ReadCode(of.p.pool.block, of.side, block, place, channel));
          four |= static_cast<uint32_t>(kLevels[bits - 2].level[CanonicalCode(bits, stored)] + 128) << (8 * b);
        }
        levels[k][h] = four;
      }
    }
    const Fate fate = slot >= 0 ? Fate::kStored : Fate::kLeftOut;
    EmitRows<d>(of, stats, levels, ScaleOf(of, block, place), fate, of.Offset(0, token));
  }
}

template <int d>
__device__ __forceinline__ void EmitZeros(const WarpPlace& of, const Step& step) {
  const float zeros[8] = {};
#pragma unroll 1
  for (int i = of.lane; i < kBlockTokens * d / 8; i += 32) {
    const int row = step.row + i / (d / 8);
    if (row < of.p.tokens) StoreEight(of.rows(), of.Offset(step.batch, row) + i % (d / 8) * 8, zeros);
  }
}

template <int bits, int d>
__device__ __forceinline__ void DecompressSide(const WarpPlace& of, const HeadStats<d>& stats, int warp, int warps) {
  const DecompressLaunch& p = of.p;
  Step next = of.Find(min(warp, p.steps - 1));
  Words<bits> words[d / 64] = {};
  float scale[2] = {};
  const auto load = [&] {
    if (next.block == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = ScaleOf(of, next.block, BlockRows<bits, d>::Token(of.side, i, of.lane));
    }
#pragma unroll
    for (int j = 0; j < d / 64; ++j) {
      words[j] = ReadWords<bits>(next.block + p.pool.block.codes(of.side) + j * GroupBytes(bits), of.lane);
    }
  };
  load();
#pragma unroll 1
  for (int step = warp; step < p.steps; step += warps) {
    const Step now = next;
    const float scales[2] = {scale[0], scale[1]};
    BlockRows<bits, d> rows;
    rows.Fill(of.side, words, of.lane);
    next = of.Find(min(step + warps, p.steps - 1));
    load();  // a step ahead
    if (now.singles != 0) EmitSingles<d>(of, stats, step * kBlockTokens, now.singles);
    if (now.block == nullptr) {
      if (p.slots == nullptr) EmitZeros<d>(of, now);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = rows.Token(of.side, i, of.lane), row = now.row + token;
      const Fate fate = row >= p.tokens ? Fate::kLeftOut : token >= now.rows ? Fate::kZero : Fate::kStored;
      EmitRows<d>(of, stats, rows.pass[i], scales[i], fate, of.Offset(now.batch, row));
    }
  }
}

// Raw types: values as they are, two a lane at a time.
template <int d>
__device__ __forceinline__ void DecompressRaw(const WarpPlace& of, int warp, int warps) {
  const DecompressLaunch& p = of.p;
#pragma unroll 1
  for (int step = warp; step < p.steps; step += warps) {
    const Step now = p.slots != nullptr ? Step{nullptr, 0, step * kBlockTokens, 0, 0} : of.Find(step);
#pragma unroll 1
    for (int i = 0; i < kBlockTokens && now.row + i < p.tokens; ++i) {
      const int64_t slot = p.slots != nullptr ? of.Slot(now.row + i) : 0;
      if (slot < 0) continue;
      const uint8_t* block = p.slots != nullptr ? of.BlockOf(slot) : now.block;
      const int place = p.slots != nullptr ? static_cast<int>(slot % kBlockTokens) : i;
#pragma unroll 1
      for (int channel = 2 * of.lane; channel < d; channel += 64) {
        float v[2] = {};
        for (int j = 0; j < 2 && (p.slots != nullptr || i < now.rows); ++j) {
          const uint16_t bits = static_cast<uint16_t>(ReadCode(p.pool.block, of.side, block, place, channel + j));
          v[j] = p.pool.bf16 ? BF16ToF32(bits) : F16ToF32(bits);
        }
        StoreValues<2>(of.rows().data, of.rows().type, of.Offset(now.batch, now.row + i) + channel, v);
      }
    }
  }
}

template <int d>
__device__ __forceinline__ void LoadStats(const WarpPlace& of, HeadStats<d>* to) {
  const Pool& pool = of.p.pool;
  const SideStats& from = of.side == Kv::kK ? pool.k : pool.v;
  for (int c = static_cast<int>(threadIdx.x); c < d; c += kWarps * 32) {
    const uint64_t word = SignWord(pool.seed, pool.layer, of.head, of.side == Kv::kV, c / 64);
    const float scale = from.scale != nullptr ? from.scale[of.head * d + c] : 1.0f;
    to->scale[c] = FlipSign(scale, static_cast<uint32_t>(word >> (c % 64)) & 1u);
    to->mean[c] =
        from.mean != nullptr ? from.mean[of.head * d + c] : -0.0f;  // no sum of it differs from the other term
  }
  __syncthreads();
}

// grid: (kv_heads, K and V, warps of a head and side / kWarps).
template <int d>
__global__ void __launch_bounds__(kWarps * 32, d <= 128 ? kResident : kResident / 2)
    DecompressKernel(const __grid_constant__ DecompressLaunch p) {
  __shared__ __align__(16) HeadStats<d> stats;
  const WarpPlace of{p, blockIdx.y == 0 ? Kv::kK : Kv::kV, static_cast<int>(blockIdx.x),
                     static_cast<int>(threadIdx.x % 32)};
  const int warp = static_cast<int>(blockIdx.z * kWarps + threadIdx.x / 32),
            warps = static_cast<int>(gridDim.z) * kWarps;
  LoadStats<d>(of, &stats);
  switch (p.pool.block.bits(of.side)) {
    case 2:
      return DecompressSide<2, d>(of, stats, warp, warps);
    case 3:
      return DecompressSide<3, d>(of, stats, warp, warps);
    case 4:
      return DecompressSide<4, d>(of, stats, warp, warps);
    case 5:
      return DecompressSide<5, d>(of, stats, warp, warps);
    case 6:
      return DecompressSide<6, d>(of, stats, warp, warps);
    case 8:
      return DecompressSide<8, d>(of, stats, warp, warps);
    default:
      return DecompressRaw<d>(of, warp, warps);
  }
}

}  // namespace

Status LaunchDecompress(const DecompressParams& p, void* stream) {
  const DecompressLaunch own(p);
  const int most = std::max(1, kMostBlocks / (2 * p.pool.kv_heads));
  const dim3 grid(static_cast<unsigned>(p.pool.kv_heads), 2,
                  static_cast<unsigned>(std::min((own.steps + kWarps - 1) / kWarps, most)));
  return ForHeadDim(p.pool.block.d, "decompress", [&]<int d>() {
    DecompressKernel<d><<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(own);
  });
}

}  // namespace tersekv::cuda
