// SPDX-License-Identifier: Apache-2.0
// Rows -> codes and scales -> pages. A warp takes a span of tokens of one KV head and side, four tokens at a time
// (eight lanes a row). Sixteen tokens that fill a block write it whole; others go in bit by bit with atomics, since
// tokens share words. Compiled without contraction.
#include <cuda_runtime.h>

#include "src/cuda/launch.h"
#include "src/cuda/quantise.cuh"

namespace tersekv::cuda {
namespace {

constexpr int kWarps = 4;

struct Parameters : AppendParams {
  int page_shift;
};
constexpr int kShortLaunch = 512;  // tokens; below, spans of 4 use more of the device

// Codes of one span as bytes. K: [token][channel]; V: [channel][token]; both padded against bank conflicts.
template <int d>
struct Staging {
  static constexpr int kKStride = d + 32, kVStride = 20;
  static constexpr int kBytes = kBlockTokens * kKStride > d* kVStride ? kBlockTokens* kKStride : d* kVStride;
  uint8_t code[kBytes];
  uint16_t scale[kBlockTokens];
};

// 4 x 4 bytes across four lanes that are 8 apart: lane t's byte j becomes lane j's byte t.
__device__ __forceinline__ uint32_t TransposeBytes(uint32_t a, int t) {
  const uint32_t x = __shfl_xor_sync(kFullWarp, a, 8);
  a = Permute(a, x, (t & 1) == 0 ? 0x6240 : 0x3715);
  const uint32_t y = __shfl_xor_sync(kFullWarp, a, 16);
  return Permute(a, y, (t & 2) == 0 ? 0x5410 : 0x3276);
}

// A lane's values of a row as they are stored: 16-bit types are loaded a step ahead, all at once; fp32 is not.
template <int d>
struct RawRow {
  uint2 w[d / 32];

  __device__ __forceinline__ void Load(const Rows& rows, int64_t at) {
    if (rows.type == Type::kF32) return;
    const uint16_t* from = static_cast<const uint16_t*>(rows.data) + at;
#pragma unroll
    for (int k = 0; k < d / 32; ++k) w[k] = __ldcs(reinterpret_cast<const uint2*>(from + 32 * k));
  }
  __device__ __forceinline__ void Widen(const Rows& rows, int64_t at, float (&x)[d / 32][4]) const {
    if (rows.type == Type::kF32) {
      const float* from = static_cast<const float*>(rows.data) + at;
#pragma unroll
      for (int k = 0; k < d / 32; ++k) {
        const float4 v = __ldcs(reinterpret_cast<const float4*>(from + 32 * k));
        x[k][0] = v.x, x[k][1] = v.y, x[k][2] = v.z, x[k][3] = v.w;
      }
    } else if (rows.type == Type::kBF16) {
#pragma unroll
      for (int k = 0; k < d / 32; ++k) {
        x[k][0] = __uint_as_float(w[k].x << 16), x[k][1] = __uint_as_float(w[k].x & 0xffff0000u);
        x[k][2] = __uint_as_float(w[k].y << 16), x[k][3] = __uint_as_float(w[k].y & 0xffff0000u);
      }
    } else {
#pragma unroll
      for (int k = 0; k < d / 32; ++k) {
        const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&w[k].x));
        const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&w[k].y));
        x[k][0] = a.x, x[k][1] = a.y, x[k][2] = b.x, x[k][3] = b.y;
      }
    }
  }
};

// tokens: bit i set when token first + i of the launch is coded; scale and code go to `stage`.
template <int bits, int d>
__device__ __forceinline__ void EncodeSpan(const Parameters& p, Kv side, int head, int first, int span, uint32_t tokens,
                                           Staging<d>* stage, int lane) {
  const Pool& pool = p.pool;
  const Rows& rows = side == Kv::kK ? p.k : p.v;
  const SideStats& stats = side == Kv::kK ? pool.k : pool.v;
  const int q = lane % kRowLanes, t = lane / kRowLanes;
  uint64_t sign_word = 0;
  if (lane < d / 64) sign_word = SignWord(pool.seed, pool.layer, head, side == Kv::kV, lane);
  const int64_t offset = head * rows.head_stride + 4 * q;
  RawRow<d> next;
  next.Load(rows, min(first + t, p.tokens - 1) * rows.token_stride + offset);
#pragma unroll 1
  for (int at = 0; at < span; at += 4) {
    const RawRow<d> raw = next;
    if (at + 4 < span) next.Load(rows, min(first + at + 4 + t, p.tokens - 1) * rows.token_stride + offset);
    if ((tokens >> at & 15u) == 0) continue;
    float x[d / 32][4], sum[4] = {0, 0, 0, 0};
    raw.Widen(rows, min(first + at + t, p.tokens - 1) * rows.token_stride + offset, x);
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      const int channel = head * d + 32 * k + 4 * q;
      if (stats.mean != nullptr) {
        const float4 mean = *reinterpret_cast<const float4*>(stats.mean + channel);
        x[k][0] = x[k][0] - mean.x, x[k][1] = x[k][1] - mean.y, x[k][2] = x[k][2] - mean.z, x[k][3] = x[k][3] - mean.w;
      }
      if (stats.inv_scale != nullptr) {
        const float4 by = *reinterpret_cast<const float4*>(stats.inv_scale + channel);
        x[k][0] = x[k][0] * by.x, x[k][1] = x[k][1] * by.y, x[k][2] = x[k][2] * by.z, x[k][3] = x[k][3] * by.w;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = sum[j] + x[k][j] * x[k][j];
      const uint32_t sign = static_cast<uint32_t>(__shfl_sync(kFullWarp, sign_word, k / 2) >> (32 * (k % 2) + 4 * q));
#pragma unroll
      for (int j = 0; j < 4; ++j) x[k][j] = FlipSign(x[k][j], sign >> j & 1u);
    }
    float s2 = TreeSum(sum);
    const bool finite = s2 <= 0x1.fffffep127f;
    if (!finite) {
      s2 = 0;
      if (p.not_finite != nullptr && (tokens >> (at + t) & 1u) != 0) *p.not_finite = 1;
    }
    const float s = sqrtf(s2);
    RowHadamard<d>(x, q);
    uint32_t codes[d / 32];
    float product, n2, peak;
    QuantiseRow<bits, d>(x, s, codes, &product, &n2, &peak);
    constexpr LevelTable kTable = LevelsOf(bits);
    float g = LloydMaxScale(kTable, side == Kv::kK ? p.k_norm : p.v_norm, s2, s, sqrtf(static_cast<float>(d)), product,
                            n2, peak);
    if (!(g < 0x1.fep127f)) g = 0x1.fep127f;  // saturates at bf16's largest
    if (q == 0) stage->scale[at + t] = F32ToBF16(g);
#pragma unroll
    for (int k = 0; k < d / 32; ++k) {
      if (side == Kv::kK) {
        *reinterpret_cast<uint32_t*>(stage->code + (at + t) * Staging<d>::kKStride + 32 * k + 4 * q) = codes[k];
      } else {
        *reinterpret_cast<uint32_t*>(stage->code + (32 * k + 4 * q + t) * Staging<d>::kVStride + at) =
            TransposeBytes(codes[k], t);
      }
    }
  }
  __syncwarp();
}

template <int d>
__device__ __forceinline__ uint8_t* StagedCode(Kv side, Staging<d>* stage, int token, int channel) {
  return side == Kv::kK ? stage->code + token * Staging<d>::kKStride + channel
                        : stage->code + channel * Staging<d>::kVStride + token;
}

template <int bits, int d>
__device__ __forceinline__ void WriteBlock(Kv side, const BlockLayout& layout, uint8_t* block, Staging<d>* stage,
                                           int lane) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int j = 0; j < d / kGroupChannels; ++j) {
    uint32_t words[bits] = {};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      uint32_t code[2];  // bytes e = 0..3, 4..7
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* from = side == Kv::kK
                                  ? StagedCode<d>(side, stage, 2 * g + u % 2, 64 * j + 32 * (u / 2) + 8 * c + 4 * half)
                                  : StagedCode<d>(side, stage, 4 * c, 64 * j + 16 * u + g + 8 * half);
        code[half] = *reinterpret_cast<const uint32_t*>(from);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        ForEachPiece(bits, side, u, e, [&](int word, int bit, int width, int shift) {
          words[word] |= (code[e / 4] >> (8 * (e % 4) + shift) & ((1u << width) - 1)) << bit;
        });
      }
    }
#pragma unroll
    for (int w = 0; w < bits; ++w) {
      *reinterpret_cast<uint32_t*>(block + layout.codes(side) + j * GroupBytes(bits) + WordOffset(bits, lane, w)) =
          words[w];
    }
  }
  if (lane < kBlockTokens) {
    reinterpret_cast<uint16_t*>(block + layout.scales(side))[lane] = stage->scale[lane];
  }
}

// One token into its place; words are shared with neighbours that other warps may be writing.
template <int bits, int d>
__device__ __forceinline__ void WriteToken(Kv side, const BlockLayout& layout, uint8_t* block, int place,
                                           Staging<d>* stage, int at, int lane) {
#pragma unroll 1
  for (int channel = lane; channel < d; channel += 32) {
    const Place to = PlaceOf(side, place, channel);
    const uint32_t code = *StagedCode<d>(side, stage, at, channel);
    uint8_t* group = block + layout.codes(side) + to.group * GroupBytes(bits);
    ForEachPiece(bits, side, to.unit, to.e, [&](int word, int bit, int width, int shift) {
      const uint32_t mask = (1u << width) - 1;
      unsigned* w = reinterpret_cast<unsigned*>(group + WordOffset(bits, to.lane, word));
      atomicAnd(w, ~(mask << bit));
      const uint32_t set = code >> shift & mask;
      if (set != 0) atomicOr(w, set << bit);
    });
  }
  if (lane == 0) reinterpret_cast<uint16_t*>(block + layout.scales(side))[place] = stage->scale[at];
}

__device__ __forceinline__ uint8_t* BlockOf(const Pool& pool, int64_t slot, int head, int page_shift) {
  const int64_t page = slot >> page_shift;
  const int64_t block = ((page * pool.kv_heads + head) << (page_shift - 4)) +
                        (static_cast<int>(slot) & (pool.page_tokens - 1)) / kBlockTokens;
  return pool.data + block * pool.block.bytes();
}

// Of the span's tokens, bit i for first + i: those whose whole block is in this launch, in order (`covered`), and the
// one where such a block starts (`start`), which this warp writes. Tokens that are left out are covered, too.
struct Blocks {
  uint32_t covered, start;
};
__device__ __forceinline__ Blocks FindBlocks(const Parameters& p, int first, int span, int lane) {
  // Lane i looks at tokens first - 16 + i and first + 16 + i.
  int64_t slot[2];
  uint32_t follows[2], aligned[2];  // the next token's slot is the next one; the slot starts a block
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first - 16 + 32 * half + lane;
    slot[half] = token >= 0 && token < p.tokens ? p.slots[token] : -1;
    const int64_t next = token + 1 >= 0 && token + 1 < p.tokens ? p.slots[token + 1] : -2;
    follows[half] = __ballot_sync(kFullWarp, slot[half] >= 0 && next == slot[half] + 1);
    aligned[half] = __ballot_sync(kFullWarp, slot[half] >= 0 && slot[half] % kBlockTokens == 0);
  }
  const uint64_t run = follows[0] | static_cast<uint64_t>(follows[1]) << 32;
  uint64_t fifteen = run & run >> 1;  // 15 links in a row from here
  fifteen &= fifteen >> 2;
  fifteen &= fifteen >> 4;  // 8 links
  fifteen &= fifteen >> 7;
  const uint64_t starts = fifteen & (aligned[0] | static_cast<uint64_t>(aligned[1]) << 32);
  uint64_t covered = starts | starts << 1;
  covered |= covered << 2;
  covered |= covered << 4;
  covered |= covered << 8;
  const uint32_t tokens = span < 32 ? (1u << span) - 1 : ~0u;
  const uint32_t absent = __ballot_sync(kFullWarp, slot[0] < 0) >> 16 | __ballot_sync(kFullWarp, slot[1] < 0) << 16;
  return {(static_cast<uint32_t>(covered >> 16) | absent) & tokens, static_cast<uint32_t>(starts >> 16) & tokens};
}

template <int bits, int d>
__device__ __forceinline__ void AppendSide(const Parameters& p, Kv side, int head, int first, int span,
                                           Staging<d>* stage, int lane) {
  Blocks blocks = FindBlocks(p, first, span, lane);
  if (span < kBlockTokens)
    blocks = {__ballot_sync(kFullWarp, lane < span && (first + lane >= p.tokens || p.slots[first + lane] < 0)), 0};
  const uint32_t start = blocks.start, single = ~blocks.covered & ((1u << span) - 1);
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {  // the whole block, then what is left
    const uint32_t tokens = pass == 1 ? single : start != 0 ? 0xffffu : 0u;
    if (tokens == 0) continue;
    const int from = pass == 1 ? first : first + __ffs(static_cast<int>(start)) - 1;
    EncodeSpan<bits, d>(p, side, head, from, pass == 1 ? span : kBlockTokens, tokens, stage, lane);
    if (pass == 0) {
      WriteBlock<bits, d>(side, p.pool.block, BlockOf(p.pool, p.slots[from], head, p.page_shift), stage, lane);
      __syncwarp();
      continue;
    }
    for (int i = 0; i < span; ++i) {
      if ((tokens >> i & 1u) == 0) continue;
      const int64_t slot = p.slots[from + i];
      WriteToken<bits, d>(side, p.pool.block, BlockOf(p.pool, slot, head, p.page_shift),
                          static_cast<int>(slot % kBlockTokens), stage, i, lane);
    }
  }
}

// Raw types: values as they are, one a thread; nobody shares them.
template <int d>
__device__ __forceinline__ void AppendRaw(const Parameters& p, Kv side, int head, int first, int span, int lane) {
  const Rows& rows = side == Kv::kK ? p.k : p.v;
  for (int i = 0; i < span && first + i < p.tokens; ++i) {
    const int64_t slot = p.slots[first + i];
    if (slot < 0) continue;
    uint8_t* codes = BlockOf(p.pool, slot, head, p.page_shift) + p.pool.block.codes(side);
    for (int channel = 2 * lane; channel < d; channel += 64) {
      float v[2];
      LoadValues<2>(rows.data, rows.type, (first + i) * rows.token_stride + head * rows.head_stride + channel, v);
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
__device__ __forceinline__ void AppendBits(const Parameters& p, Kv side, int head, int first, int span,
                                           Staging<d>* stage, int lane) {
  switch (p.pool.block.bits(side)) {
    case 2:
      return AppendSide<2, d>(p, side, head, first, span, stage, lane);
    case 3:
      return AppendSide<3, d>(p, side, head, first, span, stage, lane);
    case 4:
      return AppendSide<4, d>(p, side, head, first, span, stage, lane);
    case 5:
      return AppendSide<5, d>(p, side, head, first, span, stage, lane);
    case 6:
      return AppendSide<6, d>(p, side, head, first, span, stage, lane);
    case 8:
      return AppendSide<8, d>(p, side, head, first, span, stage, lane);
    default:
      return AppendRaw<d>(p, side, head, first, span, lane);
  }
}

// grid: (spans / kWarps, kv_heads, K and V).
template <int d>
__global__ void __launch_bounds__(kWarps * 32) AppendKernel(const __grid_constant__ Parameters p, int span) {
  __shared__ __align__(16) Staging<d> stages[kWarps];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * span, head = static_cast<int>(blockIdx.y);
  if (first >= p.tokens) return;
  AppendBits<d>(p, blockIdx.z == 0 ? Kv::kK : Kv::kV, head, first, span, &stages[warp], lane);
}

}  // namespace

Status LaunchAppend(const AppendParams& p, void* stream) {
  const int span = p.tokens < kShortLaunch ? 4 : kBlockTokens;
  const int spans = (p.tokens + span - 1) / span;
  const dim3 grid(static_cast<unsigned>((spans + kWarps - 1) / kWarps), static_cast<unsigned>(p.pool.kv_heads), 2);
  int page_shift = 4;
  while (1 << page_shift < p.pool.page_tokens) ++page_shift;
  return ForHeadDim(p.pool.block.d, "append", [&]<int d>() {
    AppendKernel<d><<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>({p, page_shift}, span);
  });
}

}  // namespace tersekv::cuda
