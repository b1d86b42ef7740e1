// SPDX-License-Identifier: Apache-2.0
// The cut of one step's work, in the workspace. A pair is a (sequence, KV head); its history is a run of tiles from the
// first one that any query sees. All pairs' tiles, one after the other, are cut into equal ranges, one a thread block.
//
// workspace = RangeStart [blocks] | SequenceTiles [batch] | counters [row_tiles][pairs][rows] | parts
// A range has at most two parts of pairs that others work on, too: its first and its last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/params.h"

namespace tersekv::cuda {

struct SequenceTiles {
  int32_t start;  // of its first pair, in the order of all tiles
  int32_t count;  // a pair
  int32_t first;  // tiles that nobody sees and that are left out
  int32_t length;
};

// The parts of a pair: one a range that it touches. Slot 0 of a range holds what began before it or with it.
struct PairParts {
  int32_t first, count;  // ranges
  int32_t second_slot;   // of the first range
};

// One thread block's work; begin == end: none.
struct RangeStart {
  int32_t begin, end;      // tiles
  int32_t batch, head;     // the pair it starts in
  SequenceTiles sequence;  // its sequence
  int32_t pair_begin;      // the pair's first tile
  PairParts head_parts;    // of that pair
  PairParts tail_parts;    // of the pair it ends in
  int32_t unused;
};

struct Workspace {
  RangeStart* ranges;
  SequenceTiles* sequences;
  int32_t* counters;
  float* parts;
};

// A part: accumulators [rows][d], then a row's terms: (m, l), with raw tokens (m, l, packed tokens' part of l, unused).
constexpr int StateTermFloats(bool raw) { return raw ? 4 : 2; }
constexpr size_t PartFloats(int rows, int d, bool raw) {
  return static_cast<size_t>(rows) * static_cast<size_t>(d + StateTermFloats(raw));
}

// Offsets in bytes; every array starts at a multiple of 16.
struct WorkspaceLayout {
  size_t sequences, counters, parts, bytes;

  constexpr WorkspaceLayout(int blocks, int batch, int kv_heads, int row_tiles, int rows, int d, bool raw)
      : sequences(sizeof(RangeStart) * static_cast<size_t>(blocks)),
        counters(sequences + sizeof(SequenceTiles) * static_cast<size_t>(batch)),
        parts((counters + 4 * static_cast<size_t>(batch) * static_cast<size_t>(kv_heads * row_tiles * rows) + 15) / 16 *
              16),
        bytes(parts + 4 * PartFloats(rows, d, raw) * 2 * static_cast<size_t>(blocks * row_tiles)) {}

  Workspace At(void* memory) const {
    uint8_t* p = static_cast<uint8_t*>(memory);
    return {reinterpret_cast<RangeStart*>(p), reinterpret_cast<SequenceTiles*>(p + sequences),
            reinterpret_cast<int32_t*>(p + counters), reinterpret_cast<float*>(p + parts)};
  }
};

// Range c is [tiles * c / ranges, tiles * (c + 1) / ranges).
constexpr int RangeBegin(int64_t tiles, int64_t range, int64_t ranges) {
  return static_cast<int>(tiles * range / ranges);
}
constexpr int RangeOf(int64_t tiles, int64_t tile, int64_t ranges) {
  return static_cast<int>(((tile + 1) * ranges - 1) / tiles);
}

struct PlanShape {
  int batch, kv_heads, q_len, window, tile_tokens, blocks, counters;  // counters: a pair
  RawTokens raw;
};

}  // namespace tersekv::cuda
