// SPDX-License-Identifier: Apache-2.0
// Who computes what in one step, decided once for all layers of a shape: query tiles x KV heads x spans of chunks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/attention/softmax_state.h"
#include "src/base/aligned.h"
#include "src/cache/history.h"

namespace tersekv {

inline constexpr int kTileRows = 64;  // rows that share one decoded page; a tile has as many queries at most

// Some queries of one sequence that share a KV head; their rows are (query, head of the group) pairs.
struct AttendTile {
  int part = 0;  // index in the step
  int first_query = 0, queries = 0;
  int kv_head = 0;
  int spans = 1;       // parts the packed chunks are cut into; the raw tokens are one more when spans > 1
  int first_item = 0;  // of its spans
};

struct AttendItem {
  int tile = 0;
  int64_t chunk_begin = 0, chunk_end = 0;  // packed chunks
  bool raw = false;                        // this item does the raw tokens
  bool whole = false;                      // packed and raw and the result, alone
  size_t state_offset = 0;                 // floats into the plan's states (when not whole)
};

class AttendPlan {
 public:
  // For layers with these heads and dims. workers: who will share the work; the cut never changes results.
  AttendPlan(const std::vector<StepSequence>& step, int heads, const LayerShape& shape, int sink, int workers);

  const std::vector<AttendTile>& tiles() const { return tiles_; }
  const std::vector<AttendItem>& items() const { return items_; }
  int group() const { return group_; }
  int max_rows() const { return max_rows_; }
  int64_t max_raw_chunks() const { return max_raw_chunks_; }  // of one tile: those that hold raw tokens it sees
  size_t stride() const { return stride_; }                   // floats between the accumulators of two rows
  float* states() const { return states_.get(); }
  size_t state_bytes() const { return state_floats_ * sizeof(float); }
  // True for the worker that finished the tile's last item; the count starts over then.
  bool FinishItem(int tile) const;

 private:
  int group_ = 1, max_rows_ = 0;
  int64_t max_raw_chunks_ = 1;
  size_t stride_ = 0, state_floats_ = 0;
  std::vector<AttendTile> tiles_;
  std::vector<AttendItem> items_;
  AlignedArray<float> states_;
  std::unique_ptr<std::atomic<int>[]> left_;  // by tile
};

}  // namespace tersekv
