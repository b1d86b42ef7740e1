// SPDX-License-Identifier: Apache-2.0
// Words of a block -> levels in the order of rows, a byte each: what decompression does in place of tensor core
// operands (loader.cuh).
#pragma once

#include "src/cuda/append_write.cuh"
#include "src/cuda/loader.cuh"

namespace tersekv::cuda {

// A lane's words of the group at `group`, which is read once.
template <int bits>
__device__ __forceinline__ Words<bits> ReadWords(const uint8_t* group, int lane) {
  Words<bits> r;
#pragma unroll
  for (int w = 0; w + 4 <= bits; w += 4) {
    const uint4 v = __ldcs(reinterpret_cast<const uint4*>(group + WordOffset(bits, lane, w)));
    r.w[w] = v.x, r.w[w + 1] = v.y, r.w[w + 2] = v.z, r.w[w + 3] = v.w;
  }
  constexpr int kWhole = bits / 4 * 4;
  if constexpr (bits % 4 == 2) {
    const uint2 v = __ldcs(reinterpret_cast<const uint2*>(group + WordOffset(bits, lane, kWhole)));
    r.w[kWhole] = v.x, r.w[kWhole + 1] = v.y;
  } else {
#pragma unroll
    for (int w = kWhole; w < bits; ++w) {
      r.w[w] = __ldcs(reinterpret_cast<const uint32_t*>(group + WordOffset(bits, lane, w)));
    }
  }
  return r;
}

// level + 128 of a unit's codes 0..3 and 4..7.
template <int bits, int u>
__device__ __forceinline__ void LevelsOfUnit(const Words<bits>& words, uint32_t (&r)[2]) {
  using internal::kTop;
  if constexpr (bits == 8) {
    r[0] = words.w[2 * u], r[1] = words.w[2 * u + 1];
  } else if constexpr (bits <= 3) {
    LloydMaxLoader<bits>::template DecodeBytes<u>(words, r);
    r[0] ^= kTop, r[1] ^= kTop;
  } else {
    const uint32_t w = words.w[u], select = w & 0x77777777u;
    const uint32_t sign[2] = {bits == 4 ? w : words.w[4] << (2 * u), bits == 4 ? w << 4 : words.w[4] << (2 * u + 1)};
    constexpr int kHigh = bits > 4 ? bits - 4 : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t high[2] = {};
      if constexpr (bits >= 5) high[0] = Permute(w << (4 * h), 0, 0xBA98);
      if constexpr (bits == 6) high[1] = Permute(words.w[5] << (2 * u + h), 0, 0xBA98);
      const uint32_t magnitude = internal::Lookup<bits, 0, kHigh>(select >> (16 * h), high);
      const uint32_t below = (sign[h] & kTop) >> 7;  // 1: a negative level
      r[h] = (magnitude ^ (kTop - below)) + below;   // bytes stay apart: 128 + m, or 127 - m and 1
    }
  }
}

// Lanes `lanes` apart: afterwards the upper one has both second registers, the other one both first ones.
__device__ __forceinline__ void Exchange(uint32_t& first, uint32_t& second, bool upper, int lanes) {
  const uint32_t keep = upper ? second : first;
  const uint32_t other = __shfl_xor_sync(kFullWarp, upper ? first : second, lanes);
  first = upper ? other : keep;
  second = upper ? keep : other;
}

// The 16 rows of a block in two passes of eight, four lanes a row as in quantise.cuh.
template <int bits, int d>
struct BlockRows {
  RowBytes<d> pass[2];

  static __device__ __forceinline__ int Token(Kv side, int i, int lane) {
    return side == Kv::kK ? lane / 4 * 2 + i : lane / 16 * 8 + 4 * i + lane / 4 % 4;
  }

  // words: the lane's of each group.
  __device__ __forceinline__ void Fill(Kv side, const Words<bits> (&words)[d / 64], int lane) {
    if (side == Kv::kK) {
#pragma unroll
      for (int j = 0; j < d / 64; ++j) {
        LevelsOfUnit<bits, 0>(words[j], pass[0][2 * j]);
        LevelsOfUnit<bits, 1>(words[j], pass[1][2 * j]);
        LevelsOfUnit<bits, 2>(words[j], pass[0][2 * j + 1]);
        LevelsOfUnit<bits, 3>(words[j], pass[1][2 * j + 1]);
      }
      return;
    }
    // A lane 4 g + c has channels 32 k + 8 p + g of tokens 4 c + t, t the byte. The low two bits of g become the byte,
    // those of c and p change places, and so do the high bits of g and c.
#pragma unroll
    for (int j = 0; j < d / 64; ++j) {
      uint32_t unit[4][2];
      LevelsOfUnit<bits, 0>(words[j], unit[0]);
      LevelsOfUnit<bits, 1>(words[j], unit[1]);
      LevelsOfUnit<bits, 2>(words[j], unit[2]);
      LevelsOfUnit<bits, 3>(words[j], unit[3]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t p[4] = {unit[2 * half][0], unit[2 * half][1], unit[2 * half + 1][0], unit[2 * half + 1][1]};
#pragma unroll
        for (uint32_t& four : p) four = TransposeBytes(four, lane / 4 % 4);
        Exchange(p[0], p[1], lane % 2 != 0, 1);  // p's low bit and c's
        Exchange(p[2], p[3], lane % 2 != 0, 1);
        Exchange(p[0], p[2], lane / 2 % 2 != 0, 2);  // p's high bit and c's
        Exchange(p[1], p[3], lane / 2 % 2 != 0, 2);
        Exchange(p[0], p[2], lane >= 16, 16);  // c's high bit and g's
        Exchange(p[1], p[3], lane >= 16, 16);
        pass[0][2 * j + half][0] = p[0], pass[0][2 * j + half][1] = p[2];
        pass[1][2 * j + half][0] = p[1], pass[1][2 * j + half][1] = p[3];
      }
    }
  }
};

}  // namespace tersekv::cuda
