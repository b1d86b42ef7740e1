// SPDX-License-Identifier: Apache-2.0
// What the queries of a tile see: tokens by number, no arithmetic on values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/attention/plan.h"
#include "src/cache/history.h"

namespace tersekv {

// Tokens that one query sees: [a0, a1) and [b0, b1), columns of a chunk or a block.
struct Visible {
  int64_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
  bool empty() const { return a0 >= a1 && b0 >= b1; }
  bool covers(int64_t begin, int64_t end) const {
    return (a0 <= begin && a1 >= end) || (b0 <= begin && b1 >= end) || (a0 <= begin && a1 >= b0 && b1 >= end);
  }
  bool sees(int64_t t) const { return (t >= a0 && t < a1) || (t >= b0 && t < b1); }
  int64_t begin() const { return a0 < a1 ? (b0 < b1 ? std::min(a0, b0) : a0) : b0; }
  int64_t end() const { return b0 < b1 ? (a0 < a1 ? std::max(a1, b1) : b1) : a1; }
};

class TileVisibility {
 public:
  // window: of AttentionParams.
  TileVisibility(const StepSequence& part, const AttendTile& tile, const LayerView& view, int32_t window)
      : queries_(part.queries.data() + tile.first_query), count_(tile.queries), sink_(view.sink) {
    for (int q = 0; window > 0 && q < count_; ++q) {
      const int32_t* begin = view.positions;
      first_seen_[q] = std::upper_bound(begin, begin + queries_[q].order + 1, queries_[q].position - window,
                                        [](int32_t p, int32_t stored) { return p < PositionOf(stored); }) -
                       begin;
    }
  }

  const StepQuery& query(int q) const { return queries_[q]; }
  const StepQuery& last() const { return queries_[count_ - 1]; }

  // Packed tokens [first, first + n) that query q sees; `first` counts from the first token after the sinks.
  Visible Packed(int q, int64_t first, int64_t n) const {
    return Clip({first_seen_[q] - sink_ - first, queries_[q].packed_end - sink_ - first, 0, 0}, n);
  }
  // Raw tokens of orders [first, first + n).
  Visible Raw(int q, int64_t first, int64_t n) const {
    const StepQuery& query = queries_[q];
    return Clip({first_seen_[q] - first, std::min(sink_, query.order + 1) - first,
                 std::max({query.packed_end, sink_, first_seen_[q]}) - first, query.order + 1 - first},
                n);
  }
  // What any query of the tile sees: the smallest two ranges that hold it.
  template <class F>  // f(q): what query q sees, clipped to [0, n)
  Visible Any(int64_t n, F&& visible) const {
    Visible all = {n, 0, n, 0};
    for (int q = 0; q < count_; ++q) {
      const Visible v = visible(q);
      if (v.a0 < v.a1) all.a0 = std::min(all.a0, v.a0), all.a1 = std::max(all.a1, v.a1);
      if (v.b0 < v.b1) all.b0 = std::min(all.b0, v.b0), all.b1 = std::max(all.b1, v.b1);
    }
    return all;
  }

 private:
  static Visible Clip(Visible v, int64_t n) {
    v.a0 = std::max<int64_t>(v.a0, 0);
    v.a1 = std::min(v.a1, n);
    v.b0 = std::max<int64_t>(v.b0, 0);
    v.b1 = std::min(v.b1, n);
    return v;
  }

  const StepQuery* queries_;
  int count_;
  int64_t sink_;
  int64_t first_seen_[kTileRows] = {};
};

}  // namespace tersekv
