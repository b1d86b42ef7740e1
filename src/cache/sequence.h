// SPDX-License-Identifier: Apache-2.0
// What one sequence holds: packed pages, raw sinks, the raw window, statistics, positions. Data only; History
// (history.h) keeps it consistent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/aligned.h"
#include "src/cache/page_pool.h"
#include "tersekv/cache.h"

namespace tersekv {

// Statistics of one sequence root; shared by forks, frozen once made.
struct Statistics {
  struct Side {
    // [kv_heads * head_dim] or empty; without a profile V has a scale only where the codec shares one
    std::vector<float> mean, scale, inv_scale;
  };
  struct Layer {
    Side k, v;
  };
  std::vector<Layer> layers;
  size_t bytes() const;
};

// f16 rows of one layer and side, wherever they are: the sinks, the ring of recent rows, the rows of the running step.
struct RawRows {
  const uint16_t* sinks = nullptr;
  const uint16_t* ring = nullptr;
  const uint16_t* step = nullptr;
  int64_t step_begin = 0;  // order of the step's first token
  int64_t sink_count = 0, ring_capacity = 0;
  size_t width = 0;  // values a row: kv_heads * head_dim

  const uint16_t* Row(int64_t order) const {
    if (order >= step_begin) return step + static_cast<size_t>(order - step_begin) * width;
    if (order < sink_count) return sinks + static_cast<size_t>(order) * width;
    return ring + static_cast<size_t>(order % ring_capacity) * width;
  }
};

struct SequenceLayer {
  // Page p holds packed tokens [p * page, (p + 1) * page). Of a windowed layer the first `gone` were given back.
  std::vector<PageRef> pages;
  size_t gone = 0;
  AlignedArray<uint16_t> sinks[2];  // by Kv: [sink, width] f16
  AlignedArray<uint16_t> ring[2];   // by Kv: [ring_capacity, width] f16, token `order` at order % ring_capacity
};

// What positions hold: the position of a token, or, where a token was removed from a page or the sinks, ~p with p the
// position before it. So PositionOf never descends, and what is below 0 is not seen.
constexpr bool IsRemoved(int32_t stored) { return stored < 0; }
constexpr int32_t PositionOf(int32_t stored) { return stored < 0 ? ~stored : stored; }

inline constexpr int kMaxRollback = 65536;     // of CacheConfig; a state may come from a cache that kept more rows
inline constexpr size_t kPositionBlock = 512;  // tables grow by this many tokens
inline constexpr size_t kPositionSlack = 128;  // vectors may read this far past the last position
inline constexpr size_t kPageBlock = 8;        // and by this many pages a layer
inline size_t PositionCapacity(size_t tokens) { return RoundUp(tokens + kPositionSlack, kPositionBlock); }

struct Sequence {
  // By order: the place of a token in sinks, pages and ring. Those of tokens ascend strictly. The last is a token.
  std::vector<int32_t> positions;
  int64_t removed = 0;     // places without a token
  int64_t packed_end = 0;  // tokens [sink, packed_end) are packed, in every layer
  int64_t raw_begin = 0;   // ring rows before this one are gone (after a truncation or a removal)
  int64_t ring_capacity = 0;
  std::shared_ptr<const Statistics> stats;
  std::vector<SequenceLayer> layers;
  size_t charged = 0;  // bytes of raw rows and tables that the pool accounts for

  int64_t length() const { return static_cast<int64_t>(positions.size()); }  // places
  int64_t tokens() const { return length() - removed; }
  // The first place whose token has a position >= `position`, or length().
  int64_t OrderOf(int64_t position) const;
  // First order behind the sinks whose raw row the ring still has.
  int64_t FirstRaw(int64_t sink) const;
  size_t raw_bytes(const CacheConfig& config) const;
  size_t table_bytes() const;
};

// Raw rows: `sink` rows and a ring of `ring_capacity`, zeroed, for every layer and side.
void AllocateRawRows(const CacheConfig& config, int64_t ring_capacity, Sequence* sequence);
// A ring of another capacity that keeps the newest rows.
void ResizeRing(const CacheConfig& config, int64_t ring_capacity, Sequence* sequence);
// Tokens [begin, end) leave; those behind move up. All of them are raw, and their rows are in the ring.
void CompactRawRows(const CacheConfig& config, int64_t begin, int64_t end, Sequence* sequence);
// Copy for a fork: pages are shared, raw rows are copied.
Sequence CloneSequence(const CacheConfig& config, const Sequence& from);

// What statistics hold, measured or given.
struct StatisticsParts {
  bool mean = false;
  bool scale[2] = {};  // by Kv
  bool any() const { return mean || scale[0] || scale[1]; }
};
StatisticsParts PartsOf(const CacheConfig& config);
// Whether sequences measure their own statistics, and whether they are packed a page at a time.
bool MeasuresStatistics(const CacheConfig& config);
bool PacksWholePages(const CacheConfig& config);

// Values of a row that is kept.
inline size_t RowWidth(const LayerShape& shape, Kv side) {
  if (shape.latent && side == Kv::kV) return 0;  // a part of K's
  return static_cast<size_t>(shape.kv_heads) *
         static_cast<size_t>(side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
}

}  // namespace tersekv
