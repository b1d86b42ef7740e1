// SPDX-License-Identifier: Apache-2.0
// Latents -> codes, scales and rotary values of pages; the bytes are those of the CPU's encoder. As append.cu: a warp
// takes eight tokens at a time, four lanes a row. Compiled without contraction.
#include <cuda_runtime.h>

#include <algorithm>

#include "src/cuda/append_write.cuh"
#include "src/cuda/latent_launch.h"
#include "src/cuda/quantise.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostBlocks = 1056;

struct Parameters : LatentAppendParams {
  int page_shift;
};

__device__ __forceinline__ uint8_t* BlockOf(const Parameters& p, int64_t slot) {
  const int64_t block = ((slot >> p.page_shift) << (p.page_shift - 4)) +
                        (static_cast<int>(slot) & (p.pool.page_tokens - 1)) / kBlockTokens;
  return p.pool.data + block * p.pool.block.bytes();
}

// The rotary part of eight tokens: a lane has 16 values of its row.
__device__ __forceinline__ void CopyRotary(const Parameters& p, int64_t token, uint8_t* block, int place, int q) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int channel = 16 * q + 4 * i;
    float v[4];
    LoadValues<4>(p.rotary.data, p.rotary.type, token * p.rotary.token_stride + channel, v);
    __half2 h[2];
    h[0] = __floats2half2_rn(v[0], v[1]);
    h[1] = __floats2half2_rn(v[2], v[3]);
    const uint32_t w[2] = {Bits(h[0]), Bits(h[1])};
    for (const uint32_t pair : w) finite = finite && (pair & 0x7c00u) != 0x7c00u && (pair & 0x7c000000u) != 0x7c000000u;
    uint8_t* to = block + p.pool.block.rotary() + 2 * (place * kRotary + channel);
    *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
  }
  if (!finite && p.not_finite != nullptr) *p.not_finite = 1;
}

template <int bits>
__device__ __forceinline__ void Step(const Parameters& p, const QuantiserTable<bits>& table, int first, int lane) {
  constexpr int d = kLatent;
  const int q = lane % kRowLanes, token = min(first + lane / kRowLanes, p.tokens - 1);
  const int64_t slot = first + lane / kRowLanes < p.tokens ? p.slots[token] : -1;
  const bool there = slot >= 0;
  const int place = static_cast<int>(slot) & (kBlockTokens - 1);
  uint8_t* block = there ? BlockOf(p, slot) : nullptr;
  const SideStats& stats = p.pool.stats;
  RowPart<d> x;
  float sum[8] = {};
#pragma unroll
  for (int k = 0; k < d / 32; ++k) {
    const int channel = 32 * k + 8 * q;
    LoadValues<8>(p.latent.data, p.latent.type, token * p.latent.token_stride + channel, x[k]);
    if (stats.mean != nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[k][j] = x[k][j] - stats.mean[channel + j];
    }
    if (stats.inv_scale != nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[k][j] = x[k][j] * stats.inv_scale[channel + j];
    }
    const uint32_t signs =
        static_cast<uint32_t>(SignWord(p.pool.seed, p.pool.layer, 0, false, channel / 64) >> (channel % 64));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum[j] = sum[j] + x[k][j] * x[k][j];
      x[k][j] = FlipSign(x[k][j], signs >> j & 1u);
    }
  }
  float s2 = TreeSum(sum);
  if (!(s2 <= 0x1.fffffep127f)) {
    s2 = 0;
    if (p.not_finite != nullptr && there) *p.not_finite = 1;
  }
  const float s = sqrtf(s2);
  RowHadamard<d>(x, q);
  RowBytes<d> codes;
  float product, n2, peak;
  QuantiseRows<bits, d>(x, s, table, p.norm == NormMode::kLs || p.norm == NormMode::kMatch, codes, &product, &n2,
                        &peak);
  constexpr LevelTable kTable = LevelsOf(bits);
  const float g = LloydMaxScale(kTable, p.norm, s2, s, sqrtf(static_cast<float>(d)), product, n2, peak);
  const uint16_t scale = F32ToBF16(g < 0x1.fep127f ? g : 0x1.fep127f);  // saturates at bf16's largest
  const int64_t base = slot - lane / kRowLanes, start = __shfl_sync(kFullWarp, base, 0);
  if (__all_sync(kFullWarp, base == start) != 0 && start >= 0 && start % kStepRows == 0) {
    WriteRun<bits, d>(Kv::kK, p.pool.block.codes(), block, static_cast<int>(start % kBlockTokens), codes, scale, lane);
  } else {
    WriteSingle<bits, d>(Kv::kK, p.pool.block.codes(), block, place, codes, scale, lane);
  }
  if (there) CopyRotary(p, token, block, place, q);
}

template <int bits>
__global__ void __launch_bounds__(kWarps * 32) LatentAppendKernel(const __grid_constant__ Parameters p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32),
            warps = static_cast<int>(gridDim.x) * kWarps;
  const QuantiserTable<bits> table(lane);
#pragma unroll 1
  for (int first = warp * kStepRows; first < p.tokens; first += warps * kStepRows) Step<bits>(p, table, first, lane);
}

}  // namespace

Status LaunchLatentAppend(const LatentAppendParams& params, void* stream) {
  Parameters p{params, 4};
  while (1 << p.page_shift < p.pool.page_tokens) ++p.page_shift;
  const int steps = (p.tokens + kStepRows - 1) / kStepRows;
  const unsigned blocks = static_cast<unsigned>(std::min((steps + kWarps - 1) / kWarps, kMostBlocks));
  return ForBits(p.pool.block.bits, "append of latents", [&]<int bits>() {
    LatentAppendKernel<bits><<<blocks, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(p);
  });
}

}  // namespace tersekv::cuda
