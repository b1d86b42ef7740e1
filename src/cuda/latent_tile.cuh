// SPDX-License-Identifier: Apache-2.0
// 64 query rows over a tile of 32 latents in shared memory, eight warps: warp w has rows 16 (w % 4) ... + 15; for
// scores tokens 16 (w / 4) ... + 15, for outputs channels 256 (w / 4) ... + 255. A tile holds levels as f16 integers,
// which serve as keys and, transposed, as values; scales of tokens go to scores and to weights.
#pragma once

#include "src/cuda/attend_view.cuh"
#include "src/cuda/latent_launch.h"
#include "src/cuda/levels.cuh"

namespace tersekv::cuda {

inline constexpr int kLatentTokens = 32, kLatentWarps = 8;
inline constexpr int kLatentThreads = 32 * kLatentWarps;

struct LatentShared {
  static constexpr int kRowBytes = 2 * kLatentKey + 16;        // of a query or a latent, against bank conflicts
  static constexpr int kWeightBytes = 2 * kLatentTokens + 16;  // of a row of weights
  static constexpr int kTile = kLatentTokens * kRowBytes;
  static constexpr int kQuery = 2 * kTile;
  static constexpr int kWeights = kQuery + kLatentRows * kRowBytes;
  static constexpr int kScales = kWeights + kLatentRows * kWeightBytes;  // float [2][3][32]: scale, log2, 1 / scale
  static constexpr int kPeaks = kScales + 2 * 3 * 4 * kLatentTokens;     // float [2][64]
  static constexpr int kTerms = kPeaks + 2 * 4 * kLatentRows;            // float [64][3]: factors of both parts, bias
  static constexpr int kBytes = kTerms + 3 * 4 * kLatentRows;
};

// What a lane has read ahead of a tile: words of two groups, 16 bytes of rotary values, a token's scale.
template <int bits>
struct LatentAhead {
  Words<bits> words[2];
  uint4 rotary;
  uint16_t scale;
};

// Softmax in base 2 of rows g and g + 8 of the warp's 16, and their outputs. m is the largest of score + log2(scale),
// so that weights times scale are at most 1 however large scales are.
struct LatentState {
  float m[2] = {kEmpty, kEmpty}, l[2] = {0, 0};  // l: of the warp's tokens and the lane's columns
  float acc[32][4] = {};                         // channels 8 n + 2 c and + 1 of row g, then of row g + 8
};

struct LatentRowView {
  int first, length, q_len, heads, row0;               // first: the tile's first token
  __device__ __forceinline__ int End(int row) const {  // one past the last token that a row sees
    return min(length - q_len + 1 + (row0 + row) / heads, length);
  }
};

__device__ __forceinline__ void LatentScores(uint8_t* memory, int buffer, int warp, int lane, float (&packed)[2][4],
                                             float (&rotary)[2][4]) {
  using S = LatentShared;
  const uint32_t a_at =
      SharedAddress(memory + S::kQuery) + (16 * (warp % 4) + lane % 16) * S::kRowBytes + lane / 16 * 16;
  const uint32_t b_at = SharedAddress(memory) + buffer * S::kTile +
                        (16 * (warp / 4) + lane % 8 + lane / 16 * 8) * S::kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[0][i] = packed[1][i] = rotary[0][i] = rotary[1][i] = 0;
  const auto step = [&](int k, float(&sum)[2][4]) {
    uint32_t a[4], b[4];
    LoadMatrices<false>(a_at + 32 * k, a);
    LoadMatrices<false>(b_at + 32 * k, b);
    const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
    Mma<false>(sum[0], a, b0);
    Mma<false>(sum[1], a, b1);
  };
#pragma unroll 8
  for (int k = 0; k < kLatent / 16; ++k) step(k, packed);
#pragma unroll
  for (int k = kLatent / 16; k < kLatentKey / 16; ++k) step(k, rotary);
}

// One tile; all warps of the block call it.
__device__ __forceinline__ void LatentStep(uint8_t* memory, int buffer, const LatentRowView& view, LatentState& state,
                                           int warp, int lane) {
  using S = LatentShared;
  const int g = lane / 4, c = lane % 4, pair = warp % 4, half = warp / 4;
  const float* scales = reinterpret_cast<const float*>(memory + S::kScales) + buffer * 3 * kLatentTokens;
  const float* terms = reinterpret_cast<const float*>(memory + S::kTerms);
  float* peaks = reinterpret_cast<float*>(memory + S::kPeaks);
  float score[2][4], rotary[2][4];
  LatentScores(memory, buffer, warp, lane, score, rotary);

  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * pair + g + i / 2 * 8, end = view.End(row) - view.first;
    const float* t = terms + 3 * row;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int token = 16 * half + 8 * n + 2 * c + i % 2;
      const float x = fmaf(score[n][i] * scales[token], t[0], fmaf(rotary[n][i], t[1], t[2]));
      score[n][i] = token < end ? x + scales[kLatentTokens + token] : -INFINITY;
      top[i / 2] = fmaxf(top[i / 2], score[n][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], lanes));
    if (c == 0) peaks[half * kLatentRows + 16 * pair + g + 8 * i] = top[i];
  }
  NamedBarrier(1 + pair, 64);  // the two warps of these rows
  float shrink[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float m = fmaxf(state.m[i], fmaxf(top[i], peaks[(1 - half) * kLatentRows + 16 * pair + g + 8 * i]));
    shrink[i] = Exp2(state.m[i] - m);
    state.m[i] = m;
    state.l[i] *= shrink[i];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint8_t* row = memory + S::kWeights + (16 * pair + g + 8 * i) * S::kWeightBytes;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int token = 16 * half + 8 * n + 2 * c;
      const float w0 = Exp2(score[n][2 * i] - state.m[i]), w1 = Exp2(score[n][2 * i + 1] - state.m[i]);
      state.l[i] = fmaf(w0, scales[2 * kLatentTokens + token], state.l[i]);
      state.l[i] = fmaf(w1, scales[2 * kLatentTokens + token + 1], state.l[i]);
      *reinterpret_cast<uint32_t*>(row + 2 * token) = Bits(__floats2half2_rn(w0, w1));
    }
  }
  if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
    for (auto& n : state.acc) n[0] *= shrink[0], n[1] *= shrink[0], n[2] *= shrink[1], n[3] *= shrink[1];
  }
  NamedBarrier(1 + pair, 64);

  const uint32_t w_at =
      SharedAddress(memory + S::kWeights) + (16 * pair + lane % 16) * S::kWeightBytes + lane / 16 * 16;
  const uint32_t v_at =
      SharedAddress(memory) + buffer * S::kTile + lane % 16 * S::kRowBytes + 512 * half + lane / 16 * 16;
#pragma unroll
  for (int k = 0; k < kLatentTokens / 16; ++k) {
    uint32_t a[4];
    LoadMatrices<false>(w_at + 32 * k, a);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      uint32_t b[4];
      LoadMatrices<true>(v_at + 16 * k * S::kRowBytes + 32 * n, b);
      const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
      Mma<false>(state.acc[2 * n], a, b0);
      Mma<false>(state.acc[2 * n + 1], a, b1);
    }
  }
}

}  // namespace tersekv::cuda
