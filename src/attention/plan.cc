// SPDX-License-Identifier: Apache-2.0
#include "src/attention/plan.h"

#include <algorithm>

#include "src/base/aligned.h"

namespace tersekv {
namespace {

constexpr int kItemsPerWorker = 4;  // enough to balance uneven items

}  // namespace

AttendPlan::AttendPlan(const std::vector<StepSequence>& step, int heads, const LayerShape& shape, int sink, int workers)
    : group_(heads / shape.kv_heads), stride_(RoundUp(static_cast<size_t>(shape.head_dim_v), 16)) {
  const int tile_queries = std::max(1, kTileRows / group_);
  for (size_t p = 0; p < step.size(); ++p) {
    const int queries = static_cast<int>(step[p].queries.size());
    for (int first = 0; first < queries; first += tile_queries) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        AttendTile tile;
        tile.part = static_cast<int>(p);
        tile.first_query = first;
        tile.queries = std::min(tile_queries, queries - first);
        tile.kv_head = h;
        max_rows_ = std::max(max_rows_, tile.queries * group_);
        tiles_.push_back(tile);
      }
    }
  }
  size_t states = 0;
  const int64_t wanted = static_cast<int64_t>(kItemsPerWorker) * workers;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    AttendTile& tile = tiles_[t];
    const std::vector<StepQuery>& queries = step[static_cast<size_t>(tile.part)].queries;
    const StepQuery& last = queries[static_cast<size_t>(tile.first_query + tile.queries - 1)];
    const int64_t packed = std::max<int64_t>(last.packed_end - sink, 0);
    const int64_t chunks = (packed + kChunkTokens - 1) / kChunkTokens;
    const int64_t window_begin = queries[static_cast<size_t>(tile.first_query)].packed_end;
    const int64_t sink_chunks = (sink + kChunkTokens - 1) / kChunkTokens;
    max_raw_chunks_ =
        std::max(max_raw_chunks_, sink_chunks + last.order / kChunkTokens - window_begin / kChunkTokens + 1);
    tile.first_item = static_cast<int>(items_.size());
    const int64_t spans_wanted =
        (wanted + static_cast<int64_t>(tiles_.size()) - 1) / static_cast<int64_t>(tiles_.size());
    int64_t span = 1;  // chunks, a power of two: a span owns whole aligned subtrees
    while (span * spans_wanted < chunks) span *= 2;
    if (workers == 1 || spans_wanted == 1 || chunks < 2) {
      items_.push_back({static_cast<int>(t), 0, chunks, true, true, 0});
      continue;
    }
    const int rows = tile.queries * group_;
    tile.spans = static_cast<int>((chunks + span - 1) / span);
    for (int64_t begin = 0; begin < chunks; begin += span) {
      items_.push_back({static_cast<int>(t), begin, std::min(chunks, begin + span), false, false, states});
      states += RoundUp(SoftmaxState::Floats(rows, stride_), 16);
    }
    items_.push_back({static_cast<int>(t), 0, 0, true, false, states});
    states += RoundUp(SoftmaxState::Floats(rows, stride_), 16);
  }
  state_floats_ = states;
  states_ = MakeAligned<float>(states);
  left_ = std::make_unique<std::atomic<int>[]>(tiles_.size());
  for (const AttendItem& item : items_) ++left_[static_cast<size_t>(item.tile)];
}

bool AttendPlan::FinishItem(int tile) const {
  std::atomic<int>& left = left_[static_cast<size_t>(tile)];
  if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  const AttendTile& t = tiles_[static_cast<size_t>(tile)];
  left.store(t.spans > 1 ? t.spans + 1 : 1, std::memory_order_relaxed);
  return true;
}

}  // namespace tersekv
