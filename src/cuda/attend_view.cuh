// SPDX-License-Identifier: Apache-2.0
// What a tile's arithmetic (attend_tile.cuh) is told about rows and tokens.
#pragma once

#include "src/cuda/loader.cuh"

namespace tersekv::cuda {

inline constexpr float kEmpty = -1e30f;  // m of a row that has seen nothing
inline constexpr float kLog2E = 1.4426950408889634f;

// What a query row is multiplied by and shifted by, in shared memory.
struct RowTerms {
  float factor, bias;  // score (base 2) = factor * k scale * <q, operands> + bias
};

// Which tokens which rows see, and what is done to scores.
struct TileView {
  int first_token;
  int length, q_len, group, row0;  // row r of the tile: query (row0 + r) / group
  int window;
  float softcap, two_over_softcap;  // in base 2; 0 = off
  const float* alibi_slopes;        // of the KV head's first query head, or null

  // Whether any row sees it: what is stored of others may be no numbers.
  __device__ __forceinline__ bool Seen(int token) const {
    return token < length && (window == 0 || token > length - q_len - window);
  }
};

template <class L, Kv side>
__device__ __forceinline__ void DecodeGroup(const Words<L::kBits>& words, uint32_t (&r)[4][4]) {
  L::template Decode<side, 0>(words, r[0]);
  L::template Decode<side, 1>(words, r[1]);
  L::template Decode<side, 2>(words, r[2]);
  L::template Decode<side, 3>(words, r[3]);
}

template <class L>
__device__ __forceinline__ void DecodeGroupBytes(const Words<L::kBits>& words, uint32_t (&r)[4][2]) {
  L::template DecodeBytes<0>(words, r[0]);
  L::template DecodeBytes<1>(words, r[1]);
  L::template DecodeBytes<2>(words, r[2]);
  L::template DecodeBytes<3>(words, r[3]);
}

}  // namespace tersekv::cuda
