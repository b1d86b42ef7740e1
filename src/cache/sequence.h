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
  std::vector<PageRef> pages;       // page p holds packed tokens [p * page, (p + 1) * page)
  AlignedArray<uint16_t> sinks[2];  // by Kv: [sink, width] f16
  AlignedArray<uint16_t> ring[2];   // by Kv: [ring_capacity, width] f16, token `order` at order % ring_capacity
};

struct Sequence {
  std::vector<int32_t> positions;  // by order, strictly ascending
  int64_t packed_end = 0;          // tokens [sink, packed_end) are packed, in every layer
  int64_t raw_begin = 0;           // ring rows before this one are gone (after a truncation)
  int64_t ring_capacity = 0;
  std::shared_ptr<const Statistics> stats;
  std::vector<SequenceLayer> layers;
  size_t charged = 0;  // bytes of raw rows and tables that the pool accounts for

  int64_t length() const { return static_cast<int64_t>(positions.size()); }
  size_t raw_bytes(const CacheConfig& config) const;
  size_t table_bytes() const;
};

// Raw rows: `sink` rows and a ring of `ring_capacity`, zeroed, for every layer and side.
void AllocateRawRows(const CacheConfig& config, int64_t ring_capacity, Sequence* sequence);
// A ring of another capacity that keeps the newest rows.
void ResizeRing(const CacheConfig& config, int64_t ring_capacity, Sequence* sequence);
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

inline size_t RowWidth(const LayerShape& shape, Kv side) {
  return static_cast<size_t>(shape.kv_heads) *
         static_cast<size_t>(side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
}

}  // namespace tersekv
