// SPDX-License-Identifier: Apache-2.0
// Pages -> rows, bit-equal to VectorCodec::Decode. One warp a row. Compiled without contraction.
#include <cuda_runtime.h>

#include "src/codec/lloyd_max.h"
#include "src/cuda/launch.h"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 8;

__constant__ const LevelTable kLevels[] = {LevelsOf(2), LevelsOf(3), LevelsOf(4), LevelsOf(5),
                                           LevelsOf(6), LevelsOf(7), LevelsOf(8)};

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

template <int d>
__global__ void __launch_bounds__(kWarps * 32) DecompressKernel(const __grid_constant__ DecompressParams p) {
  constexpr int kWidth = d / 32;
  const int lane = static_cast<int>(threadIdx.x % 32), head = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const Kv side = blockIdx.z == 0 ? Kv::kK : Kv::kV;
  if (token >= p.tokens || p.slots[token] < 0) return;
  const Pool& pool = p.pool;
  const int64_t slot = p.slots[token], blocks = pool.page_tokens / kBlockTokens;
  const int place = static_cast<int>(slot % kBlockTokens), bits = pool.block.bits(side);
  const uint8_t* block =
      pool.data + ((slot / pool.page_tokens * pool.kv_heads + head) * blocks + slot % pool.page_tokens / kBlockTokens) *
                      pool.block.bytes();
  const Rows& rows = side == Kv::kK ? p.k : p.v;
  float x[kWidth];
  if (!pool.block.scaled()) {
    for (int i = 0; i < kWidth; ++i) {
      const uint32_t v = ReadCode(pool.block, side, block, place, ChannelOf<d>(lane, i));
      x[i] = pool.bf16 ? BF16ToF32(static_cast<uint16_t>(v)) : F16ToF32(static_cast<uint16_t>(v));
    }
  } else {
    const float scale = BF16ToF32(reinterpret_cast<const uint16_t*>(block + pool.block.scales(side))[place]);
    for (int i = 0; i < kWidth; ++i) {
      const int stored = static_cast<int>(ReadCode(pool.block, side, block, place, ChannelOf<d>(lane, i)));
      x[i] = scale * static_cast<float>(kLevels[bits - 2].level[CanonicalCode(bits, stored)]);
    }
    Hadamard<d, true>(x, lane);
    const uint32_t signs = RowSigns<d>(pool, head, side, lane);
    const float inv_sqrt_d = 1.0f / sqrtf(static_cast<float>(d));
    const SideStats& stats = side == Kv::kK ? pool.k : pool.v;
    for (int i = 0; i < kWidth; ++i) {
      x[i] = x[i] * FlipSign(inv_sqrt_d, signs >> i & 1u);
      if (stats.scale != nullptr) x[i] = x[i] * stats.scale[head * d + ChannelOf<d>(lane, i)];
      if (stats.mean != nullptr) x[i] = x[i] + stats.mean[head * d + ChannelOf<d>(lane, i)];
    }
  }
  StoreRow<d>(rows.data, rows.type, token * rows.token_stride + head * rows.head_stride, lane, x);
}

}  // namespace

Status LaunchDecompress(const DecompressParams& p, void* stream) {
  const dim3 grid(static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps), static_cast<unsigned>(p.pool.kv_heads), 2);
  return ForHeadDim(p.pool.block.d, "decompress", [&]<int d>() {
    DecompressKernel<d><<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(p);
  });
}

}  // namespace tersekv::cuda
