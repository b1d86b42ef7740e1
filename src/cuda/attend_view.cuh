// SPDX-License-Identifier: Apache-2.0
// What a tile's arithmetic (attend_tile.cuh) is told about rows and tokens.
#pragma once

#include "src/cuda/loader.cuh"
#include "src/cuda/params.h"

namespace tersekv::cuda {

inline constexpr float kEmpty = -1e30f;  // m of a row that has seen nothing
inline constexpr float kLog2E = 1.4426950408889634f;

// What a query row is multiplied by and shifted by, in shared memory.
struct RowTerms {
  float factor, bias;  // score (base 2) = factor * k scale * <q, operands> + bias
};

// Which tokens which rows see, and what is done to scores.
struct TileView {
  int first_token;                 // its position
  int length, q_len, group, row0;  // row r of the tile: query (row0 + r) / group
  int window;
  float softcap, two_over_softcap;  // in base 2; 0 = off
  const float* alibi_slopes;        // of the KV head's first query head, or null

  // Whether rows may differ in what they see of the next `tokens`.
  __device__ __forceinline__ bool Edge(int tokens) const {
    const int last = first_token + tokens, seen_by_all = length - q_len + 1;
    return last > seen_by_all || (window > 0 && first_token < length - window);
  }
  // Whether any row sees it: what is stored of others may be no numbers.
  __device__ __forceinline__ bool Seen(int token) const {
    return token < length && (window == 0 || token > length - q_len - window);
  }
  // What a row sees, whose query has `end` tokens up to it.
  struct Row {
    int begin, end;
    __device__ __forceinline__ bool Hides(int token) const { return token >= end || token < begin; }
  };
  __device__ __forceinline__ Row RowOf(int end) const { return {window > 0 ? end - window : 0, end}; }
};

// The packed ones when there are raw tokens, too.
struct PackedView : TileView {
  const RawTokens& raw;
  int from;  // RawTokens::begin of the sequence

  __device__ __forceinline__ bool Edge(int tokens) const {
    const int end = length - q_len + 1;
    return first_token + tokens > min(end, raw.PackedEnd(end, from)) || (window > 0 && first_token < length - window);
  }
  __device__ __forceinline__ bool Seen(int token) const {
    return token < raw.PackedEnd(length, from) && TileView::Seen(token);
  }
  __device__ __forceinline__ Row RowOf(int end) const {
    return {window > 0 ? end - window : 0, min(end, raw.PackedEnd(end, from))};
  }
};

// The raw ones.
struct RawView : TileView {
  const RawTokens& raw;
  int from;

  static __device__ __forceinline__ bool Edge(int) { return true; }
  __device__ __forceinline__ bool Seen(int token) const {
    return TileView::Seen(token) && (token < raw.sink || token >= raw.PackedEnd(length - q_len + 1, from));
  }
  struct Row : TileView::Row {
    int gap_begin, gap_end;
    __device__ __forceinline__ bool Hides(int token) const {
      return TileView::Row::Hides(token) || (token >= gap_begin && token < gap_end);
    }
  };
  __device__ __forceinline__ Row RowOf(int end) const {
    return {TileView::RowOf(end), raw.sink, raw.PackedEnd(end, from)};
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
