// SPDX-License-Identifier: Apache-2.0
// Ranges of pages -> rows of transformed space, scale * level, for attention that others do. No row is rotated, and no
// value changes its lane: rows of V have their channels in the order of pages (RowChannel), which the merge undoes. A
// warp takes a block of one KV head and side at a time.
#include <cuda_runtime.h>

#include <algorithm>

#include "src/cuda/decompress.cuh"
#include "src/cuda/launch.h"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kResident = 6;       // thread blocks of head_dim up to 128 a multiprocessor
constexpr int kMostBlocks = 3168;  // of a launch: four times what is resident on 132; each goes on with the next tokens

// 4 x 4 bytes: byte t of word i becomes byte i of word t.
__device__ __forceinline__ void TransposeWords(uint32_t (&w)[4]) {
  const uint32_t a = Permute(w[0], w[1], 0x5140), b = Permute(w[0], w[1], 0x7362);
  const uint32_t c = Permute(w[2], w[3], 0x5140), e = Permute(w[2], w[3], 0x7362);
  w[0] = Permute(a, c, 0x5410), w[1] = Permute(a, c, 0x7632);
  w[2] = Permute(b, e, 0x5410), w[3] = Permute(b, e, 0x7632);
}

// Eight levels + 128, a byte each, times scale.
__device__ __forceinline__ void Emit(const Rows& rows, int64_t at, uint32_t first, uint32_t second, float scale) {
  const float shift = -scale * kLevelLift;  // exact, as is the sum: the product is rounded once
  float v[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[j] = __fmaf_rn(scale, LiftedLevel(first, j), shift);
    v[4 + j] = __fmaf_rn(scale, LiftedLevel(second, j), shift);
  }
  StoreEight(rows, at, v);
}

template <int bits, int d>
__device__ __forceinline__ void TransformedSide(const WarpPlace& of, int warp, int warps) {
  const DecompressLaunch& p = of.p;
  const bool key = of.side == Kv::kK;
  const int g = of.lane / 4, c = of.lane % 4;
  Words<bits> words[d / 64] = {};
  uint2 scales = {};  // of tokens 2 g and 2 g + 1, or 4 c ... 4 c + 3
  Step next{};
  const auto load = [&](int step) {
    next = of.Find(min(step, p.steps - 1));
    if (next.block == nullptr) return;
    const uint8_t* from = next.block + p.pool.block.scales(of.side);
    if (key) {
      scales.x = *reinterpret_cast<const uint32_t*>(from + 4 * g);
    } else {
      scales = *reinterpret_cast<const uint2*>(from + 8 * c);
    }
#pragma unroll
    for (int j = 0; j < d / 64; ++j) {
      words[j] = ReadWords<bits>(next.block + p.pool.block.codes(of.side) + j * GroupBytes(bits), of.lane);
    }
  };
  load(warp);
#pragma unroll 1
  for (int step = warp; step < p.steps; step += warps) {
    const Step now = next;
    const auto scale = [&](uint32_t bf16, int token) {  // of tokens that are not there: 0
      return token < now.rows ? __uint_as_float(bf16) : 0.0f;
    };
    uint32_t levels[d / 64][4][2];
#pragma unroll
    for (int j = 0; j < d / 64; ++j) {
      LevelsOfUnit<bits, 0>(words[j], levels[j][0]);
      LevelsOfUnit<bits, 1>(words[j], levels[j][1]);
      LevelsOfUnit<bits, 2>(words[j], levels[j][2]);
      LevelsOfUnit<bits, 3>(words[j], levels[j][3]);
    }
    const uint2 bf16 = scales;
    load(step + warps);  // a step ahead
    const int64_t to = of.Offset(now.batch, now.row);
    if (key) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 2 * g + i;
        if (now.row + token >= p.tokens) continue;
        const float s = scale(i == 0 ? bf16.x << 16 : bf16.x & 0xffff0000u, token);
#pragma unroll
        for (int k = 0; k < d / 32; ++k) {
          const uint32_t(&unit)[2] = levels[k / 2][k % 2 * 2 + i];
          Emit(of.rows(), to + token * of.rows().token_stride + 32 * k + 8 * c, unit[0], unit[1], s);
        }
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < d / 64; ++j) {
      uint32_t low[4] = {levels[j][0][0], levels[j][0][1], levels[j][1][0], levels[j][1][1]};
      uint32_t high[4] = {levels[j][2][0], levels[j][2][1], levels[j][3][0], levels[j][3][1]};
      TransposeWords(low);
      TransposeWords(high);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int token = 4 * c + t;
        if (now.row + token >= p.tokens) continue;
        const uint32_t pair = t < 2 ? bf16.x : bf16.y;
        const float s = scale(t % 2 == 0 ? pair << 16 : pair & 0xffff0000u, token);
        Emit(of.rows(), to + token * of.rows().token_stride + 64 * j + 8 * g, low[t], high[t], s);
      }
    }
  }
}

// grid: (kv_heads, K and V, warps of a head and side / kWarps).
template <int d>
__global__ void __launch_bounds__(kWarps * 32, d <= 128 ? kResident : kResident / 2)
    TransformedKernel(const __grid_constant__ DecompressLaunch p) {
  const WarpPlace of{p, blockIdx.y == 0 ? Kv::kK : Kv::kV, static_cast<int>(blockIdx.x),
                     static_cast<int>(threadIdx.x % 32)};
  const int warp = static_cast<int>(blockIdx.z * kWarps + threadIdx.x / 32),
            warps = static_cast<int>(gridDim.z) * kWarps;
  switch (p.pool.block.bits(of.side)) {
    case 2:
      return TransformedSide<2, d>(of, warp, warps);
    case 3:
      return TransformedSide<3, d>(of, warp, warps);
    case 4:
      return TransformedSide<4, d>(of, warp, warps);
    case 5:
      return TransformedSide<5, d>(of, warp, warps);
    case 6:
      return TransformedSide<6, d>(of, warp, warps);
    default:
      return TransformedSide<8, d>(of, warp, warps);
  }
}

}  // namespace

Status LaunchTransformed(const DecompressParams& p, void* stream) {
  const DecompressLaunch own(p);
  const int most = std::max(1, kMostBlocks / (2 * p.pool.kv_heads));
  const dim3 grid(static_cast<unsigned>(p.pool.kv_heads), 2,
                  static_cast<unsigned>(std::min((own.steps + kWarps - 1) / kWarps, most)));
  return ForHeadDim(p.pool.block.d, "decompress", [&]<int d>() {
    TransformedKernel<d><<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(own);
  });
}

}  // namespace tersekv::cuda
