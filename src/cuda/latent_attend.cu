// SPDX-License-Identifier: Apache-2.0
// Attention over packed latents: a thread block decodes tiles of a run of a sequence's latents to shared memory, a tile
// ahead of the products, for 64 query rows; a second launch joins the runs, in their order, and brings rows back.
#include <cuda_runtime.h>

#include <string>

#include "src/cuda/latent_tile.cuh"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

struct Parameters : LatentAttendParams {
  int page_shift, row_blocks, splits;
  float* parts;   // [batch][row_blocks * 64][splits][512]
  float2* terms;  // the same of (m, l)

  __device__ int64_t Part(int batch, int row, int split) const {
    return (static_cast<int64_t>(batch) * row_blocks * kLatentRows + row) * splits + split;
  }
};

// A run of a sequence's tiles.
struct Run {
  int begin, end;
  __device__ Run(int length, int split, int splits) {
    const int tiles = (length + kLatentTokens - 1) / kLatentTokens, each = (tiles + splits - 1) / splits;
    begin = min(split * each, tiles);
    end = min(begin + each, tiles);
  }
};

// Row `row` of the block, in rotated space and scaled by a power of two, as f16; its terms. One warp.
__device__ __forceinline__ void PrepareRow(const Parameters& p, int batch, int row0, int row, uint8_t* memory,
                                           int lane) {
  using S = LatentShared;
  uint8_t* to = memory + S::kQuery + row * S::kRowBytes;
  float* terms = reinterpret_cast<float*>(memory + S::kTerms) + 3 * row;
  const int index = row0 + row, channel = 16 * lane;
  float x[16] = {}, r[2] = {}, product = 0;
  if (index < p.heads * p.q_len) {
    const int64_t at =
        batch * p.q.batch_stride + index / p.heads * p.q.token_stride + index % p.heads * p.q.head_stride;
    LoadValues<16>(p.q.data, p.q.type, at + channel, x);
    LoadValues<2>(p.q.data, p.q.type, at + kLatent + 2 * lane, r);
  }
  const SideStats& stats = p.pool.stats;
  const uint32_t signs =
      static_cast<uint32_t>(SignWord(p.pool.seed, p.pool.layer, 0, false, channel / 64) >> (channel % 64));
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (stats.mean != nullptr) product = fmaf(x[i], stats.mean[channel + i], product);
    if (stats.scale != nullptr) x[i] *= stats.scale[channel + i];
    x[i] = FlipSign(x[i], signs >> i & 1u);
  }
  product = WarpSum(product);
  Hadamard<kLatent, false>(x, lane);
  constexpr float kInvSqrt = 1.0f / 22.6274170f;
  float largest = 0, largest_rotary = fmaxf(fabsf(r[0]), fabsf(r[1]));
#pragma unroll
  for (float& v : x) {
    v *= kInvSqrt;
    largest = fmaxf(largest, fabsf(v));
  }
  // Powers of two that bring a row's largest value to [2^7, 2^8); rows below 2^-100 count as that.
  const auto up = [](float v) {
    const int exponent = max(static_cast<int>(__float_as_uint(v) >> 23), 27) - 127;
    return __uint_as_float(static_cast<uint32_t>(127 + 7 - exponent) << 23);
  };
  const float by = up(WarpMax(largest)), by_rotary = up(WarpMax(largest_rotary));
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    *reinterpret_cast<uint32_t*>(to + 2 * (channel + i)) = Bits(__floats2half2_rn(x[i] * by, x[i + 1] * by));
  }
  *reinterpret_cast<uint32_t*>(to + 2 * (kLatent + 2 * lane)) =
      Bits(__floats2half2_rn(r[0] * by_rotary, r[1] * by_rotary));
  if (lane == 0) {
    const float factor = p.scale * kLog2E;
    terms[0] = factor / by, terms[1] = factor / by_rotary, terms[2] = factor * product;
  }
}

// Thread t of 256: two (block, group) pairs' words of its warp's, 16 bytes of rotary values, a scale.
template <int bits>
__device__ __forceinline__ void ReadAhead(const Parameters& p, int batch, int tile, int length, int warp, int lane,
                                          LatentAhead<bits>* ahead) {
  const auto block = [&](int i) {  // of the tile's two; a block that is not there: null
    const int token = tile * kLatentTokens + i * kBlockTokens;
    const uint8_t* none = nullptr;
    if (token >= length) return none;
    const int64_t page = p.block_table[batch * p.table_stride + (token >> p.page_shift)];
    const int64_t index = (page << (p.page_shift - 4)) + (token & (p.pool.page_tokens - 1)) / kBlockTokens;
    return static_cast<const uint8_t*>(p.pool.data + index * p.pool.block.bytes());
  };
  // warps 0..3: groups 2 w, 2 w + 1 of the first block; 4..7: of the second
  const uint8_t* own = block(warp / 4);
  *ahead = {};
  if (own == nullptr) return;
#pragma unroll
  for (int j = 0; j < 2; ++j) ahead->words[j] = ReadWords<bits>(own + (2 * (warp % 4) + j) * GroupBytes(bits), lane);
  const int within = warp % 4 * 32 + lane;  // of 128 threads a block
  ahead->rotary = *reinterpret_cast<const uint4*>(own + p.pool.block.rotary() + 16 * within);
  if (within < kBlockTokens) {
    ahead->scale = *reinterpret_cast<const uint16_t*>(own + p.pool.block.scales() + 2 * within);
  }
}

template <int bits, int u>
__device__ __forceinline__ void StoreUnit(const Words<bits>& words, uint8_t* rows, int group, int lane) {
  uint32_t levels[2];
  Operands pairs;
  LevelsOfUnit<bits, u>(words, levels);
  internal::JoinBytes<Kv::kK>(levels[0], levels[1], pairs);
  uint8_t* to =
      rows + (lane / 4 * 2 + u % 2) * LatentShared::kRowBytes + 2 * (64 * group + 32 * (u / 2) + 8 * (lane % 4));
  *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <int bits>
__device__ __forceinline__ void StoreTile(const LatentAhead<bits>& ahead, int tile, int length, uint8_t* memory,
                                          int buffer, int warp, int lane) {
  using S = LatentShared;
  uint8_t* rows = memory + buffer * S::kTile + warp / 4 * kBlockTokens * S::kRowBytes;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int group = 2 * (warp % 4) + j;
    StoreUnit<bits, 0>(ahead.words[j], rows, group, lane);
    StoreUnit<bits, 1>(ahead.words[j], rows, group, lane);
    StoreUnit<bits, 2>(ahead.words[j], rows, group, lane);
    StoreUnit<bits, 3>(ahead.words[j], rows, group, lane);
  }
  const int within = warp % 4 * 32 + lane, row = within / 8;
  uint4 rotary = ahead.rotary;
  if (tile * kLatentTokens + warp / 4 * kBlockTokens + row >= length) rotary = {};  // what was never written
  *reinterpret_cast<uint4*>(rows + row * S::kRowBytes + 2 * kLatent + within % 8 * 16) = rotary;
  if (within < kBlockTokens) {
    const int token = warp / 4 * kBlockTokens + within;
    const bool there = tile * kLatentTokens + token < length;
    const float scale = there ? fmaxf(BF16ToF32(ahead.scale), 0x1p-100f) : 1.0f;
    float* scales = reinterpret_cast<float*>(memory + S::kScales) + buffer * 3 * kLatentTokens;
    scales[token] = scale, scales[kLatentTokens + token] = Log2(scale),
    scales[2 * kLatentTokens + token] = 1.0f / scale;
  }
}

// grid: (splits, row_blocks, batch).
template <int bits>
__global__ void __launch_bounds__(kLatentThreads, 1) LatentAttendKernel(const __grid_constant__ Parameters p) {
  using S = LatentShared;
  extern __shared__ __align__(128) uint8_t memory[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int split = static_cast<int>(blockIdx.x), row0 = static_cast<int>(blockIdx.y) * kLatentRows,
            batch = static_cast<int>(blockIdx.z);
  const int length = max(p.lengths[batch], 0);
  const Run run(length, split, p.splits);
  LatentState state;
  if (run.begin < run.end) {
    LatentAhead<bits> ahead;
    ReadAhead<bits>(p, batch, run.begin, length, warp, lane, &ahead);
#pragma unroll 1
    for (int row = warp; row < kLatentRows; row += kLatentWarps) PrepareRow(p, batch, row0, row, memory, lane);
    StoreTile<bits>(ahead, run.begin, length, memory, 0, warp, lane);
    if (run.begin + 1 < run.end) ReadAhead<bits>(p, batch, run.begin + 1, length, warp, lane, &ahead);
    __syncthreads();
#pragma unroll 1
    for (int tile = run.begin; tile < run.end; ++tile) {
      const int buffer = (tile - run.begin) % 2;
      if (tile + 1 < run.end) {
        StoreTile<bits>(ahead, tile + 1, length, memory, 1 - buffer, warp, lane);
        if (tile + 2 < run.end) ReadAhead<bits>(p, batch, tile + 2, length, warp, lane, &ahead);
      }
      LatentStep(memory, buffer, {tile * kLatentTokens, length, p.q_len, p.heads, row0}, state, warp, lane);
      __syncthreads();
    }
  }
  // Rows g and g + 8: both warps of a row have its m, each the l of its tokens.
  const int g = lane / 4, c = lane % 4, half = warp / 4;
  float* sums = reinterpret_cast<float*>(memory + S::kPeaks);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) state.l[i] += __shfl_xor_sync(kFullWarp, state.l[i], lanes);
    if (c == 0) sums[half * kLatentRows + 16 * (warp % 4) + g + 8 * i] = state.l[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * (warp % 4) + g + 8 * i;
    if (row0 + row >= p.heads * p.q_len) continue;
    const int64_t part = p.Part(batch, row0 + row, split);
    if (half == 0 && c == 0) p.terms[part] = make_float2(state.m[i], sums[row] + sums[kLatentRows + row]);
    float* to = p.parts + part * kLatent + 256 * half + 2 * c;
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(state.acc[n][2 * i], state.acc[n][2 * i + 1]);
    }
  }
}

// One warp a row.
__global__ void __launch_bounds__(128) LatentJoinKernel(const __grid_constant__ Parameters p) {
  const int lane = static_cast<int>(threadIdx.x % 32), rows = p.heads * p.q_len, channel = 16 * lane;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (index >= static_cast<int64_t>(p.batch) * rows) return;
  const int batch = static_cast<int>(index / rows), row = static_cast<int>(index % rows);
  const int64_t first = p.Part(batch, row, 0);
  const float2 own = lane < p.splits ? p.terms[first + lane] : make_float2(kEmpty, 0);  // at most 32 splits
  const float m = WarpMax(own.x);
  const float factor = own.y > 0 ? Exp2(own.x - m) : 0.0f;
  const float l = WarpSum(own.y * factor);
  float x[16] = {};
#pragma unroll 1
  for (int i = 0; i < p.splits; ++i) {
    const float f = __shfl_sync(kFullWarp, factor, i);
    if (f == 0) continue;
    float v[16];
    LoadValues<16>(p.parts, Type::kF32, (first + i) * kLatent + channel, v);
#pragma unroll
    for (int j = 0; j < 16; ++j) x[j] = fmaf(f, v[j], x[j]);
  }
  const float inverse = l > 0 ? 1.0f / l : 0.0f;
  Hadamard<kLatent, true>(x, lane);
  const SideStats& stats = p.pool.stats;
  const uint32_t signs =
      static_cast<uint32_t>(SignWord(p.pool.seed, p.pool.layer, 0, false, channel / 64) >> (channel % 64));
  constexpr float kInvSqrt = 1.0f / 22.6274170f;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    x[i] *= FlipSign(kInvSqrt * inverse, signs >> i & 1u);
    if (stats.scale != nullptr) x[i] *= stats.scale[channel + i];
    if (stats.mean != nullptr && l > 0) x[i] += stats.mean[channel + i];
  }
  const int token = row / p.heads, head = row % p.heads;
  StoreValues<16>(p.out.data, p.out.type,
                  batch * p.out.batch_stride + token * p.out.token_stride + head * p.out.head_stride + channel, x);
  if (p.lse != nullptr && lane == 0) p.lse[index] = l > 0 ? (m + Log2(l)) * kLn2 : -INFINITY;
}

}  // namespace

Status LaunchLatentAttend(const LatentAttendParams& params, const LatentShape& shape, void* stream) {
  Parameters p{params, 4, shape.row_blocks, shape.splits, static_cast<float*>(params.workspace), nullptr};
  p.terms = reinterpret_cast<float2*>(p.parts + LatentParts(shape, p.batch) * kLatent);
  while (1 << p.page_shift < p.pool.page_tokens) ++p.page_shift;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(p.row_blocks), static_cast<unsigned>(p.batch));
  cudaError_t error = cudaSuccess;
  const Status status = ForBits(p.pool.block.bits, "attention over latents", [&]<int bits>() {
    error = cudaFuncSetAttribute(LatentAttendKernel<bits>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 LatentShared::kBytes);
    if (error != cudaSuccess) return;
    LatentAttendKernel<bits><<<grid, kLatentThreads, LatentShared::kBytes, on>>>(p);
  });
  if (error != cudaSuccess) {
    return Unsupported("attention over latents needs " + std::to_string(LatentShared::kBytes) +
                       " bytes of shared memory a thread block: " + cudaGetErrorString(error));
  }
  if (!status.ok()) return status;
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_len;
  LatentJoinKernel<<<static_cast<unsigned>((rows + 3) / 4), 128, 0, on>>>(p);
  return LaunchStatus("join of latents");
}

Status DeviceBlocks(int* blocks) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(blocks, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return Unsupported(std::string("no CUDA device: ") + cudaGetErrorString(error));
  return {};
}

}  // namespace tersekv::cuda
