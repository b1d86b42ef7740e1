// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "src/base/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attend.cc"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"
#include "src/cpu/tile_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void CopyState(const SoftmaxState& from, int rows, size_t stride, float* to) {
  const SoftmaxState s = SoftmaxState::At(to, rows, stride);
  std::memcpy(s.m, from.m, static_cast<size_t>(rows) * sizeof(float));
  std::memcpy(s.l, from.l, static_cast<size_t>(rows) * sizeof(float));
  std::memcpy(s.acc, from.acc, static_cast<size_t>(rows) * stride * sizeof(float));
}

// Joins the spans of a tile as its chunks would have been joined by one worker.
SoftmaxState JoinSpans(const AttendPlan& plan, const AttendTile& tile, int rows, int values, AttendScratch* scratch) {
  StateFold fold(scratch->packed_fold, scratch->packed_slots, rows, plan.stride(), values);
  const AttendItem* items = &plan.items()[static_cast<size_t>(tile.first_item)];
  const int64_t span = items[0].chunk_end - items[0].chunk_begin;
  int level = 0;
  while ((int64_t{1} << level) < span) ++level;
  for (int i = 0; i < tile.spans; ++i) {
    const SoftmaxState next = fold.Next();
    CopyState(SoftmaxState::At(plan.states() + items[i].state_offset, rows, plan.stride()), rows, plan.stride(),
              next.m);
    const bool complete = items[i].chunk_end - items[i].chunk_begin == (int64_t{1} << level);
    fold.Push(complete ? level : -1);
  }
  return fold.Finish();
}

void AttendItems(const AttendCall& call, AttendScratch* scratch, int worker, int workers) {
  const AttendPlan& plan = *call.plan;
  for (size_t i = static_cast<size_t>(worker); i < plan.items().size(); i += static_cast<size_t>(workers)) {
    const AttendItem& item = plan.items()[i];
    const AttendTile& tile = plan.tiles()[static_cast<size_t>(item.tile)];
    TileWork work(call, tile, scratch);
    work.LoadQueries(item.whole || !item.raw);
    if (item.whole) {
      const SoftmaxState packed = work.Packed(item.chunk_begin, item.chunk_end);
      work.Write(packed, work.Raw());
      continue;
    }
    const SoftmaxState state = item.raw ? work.Raw() : work.Packed(item.chunk_begin, item.chunk_end);
    CopyState(state, work.rows(), plan.stride(), plan.states() + item.state_offset);
    if (!plan.FinishItem(item.tile)) continue;
    const AttendItem& raw = plan.items()[static_cast<size_t>(tile.first_item + tile.spans)];
    const int values = static_cast<int>(call.history->View(call.layer, call.history->step()[0]).layout->v.d);
    work.Write(JoinSpans(plan, tile, work.rows(), values, scratch),
               SoftmaxState::At(plan.states() + raw.state_offset, work.rows(), plan.stride()));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tersekv {
HWY_EXPORT(AttendItems);

void AttendScratch::Reserve(const AttendPlan& plan, const LayerShape& shape, int page_tokens) {
  const size_t rows = static_cast<size_t>(plan.max_rows()), tile = static_cast<size_t>(std::max(page_tokens, 64));
  const size_t dk = static_cast<size_t>(shape.head_dim_k), dv = static_cast<size_t>(shape.head_dim_v);
  const size_t state = SoftmaxState::Floats(plan.max_rows(), plan.stride());
  packed_slots = StateFold::Slots(INT32_MAX);
  raw_slots = StateFold::Slots(plan.max_raw_chunks());
  size_t floats = 0;
  const auto place = [&](auto** pointer, size_t count) {
    static_assert(sizeof(**pointer) == sizeof(float));
    using Element = std::remove_pointer_t<std::remove_reference_t<decltype(*pointer)>>;
    if (memory_ != nullptr) *pointer = reinterpret_cast<Element*>(memory_.get() + floats);
    floats += RoundUp(count + 16, 16);
  };
  const auto place_all = [&] {
    floats = 0;
    place(&q_raw, rows * dk);
    place(&q_rotated, rows * dk);
    for (float** array : {&q_mean, &q_poison, &q_unit, &slope}) place(array, rows);
    for (float** array : {&reference, &factor}) place(array, rows * kMaxBlocks);
    place(&w_start, rows * kMaxBlocks);
    place(&q_words, rows * kRowStride);
    place(&q_start, rows);
    place(&k_scale, kChunkTokens);
    place(&v_scale, kChunkTokens);
    place(&k_tile, dk * tile);
    place(&v_tile, tile * plan.stride());
    place(&scores, rows * kRowStride);
    place(&row, 4 * std::max(dk, dv));
    place(&page_mean, 2 * std::max(dk, dv));
    place(&packed_fold, static_cast<size_t>(packed_slots) * state);
    place(&raw_fold, static_cast<size_t>(raw_slots) * state);
  };
  place_all();
  if (floats > floats_) {
    memory_ = MakeAligned<float>(floats);
    floats_ = floats;
    place_all();
  }
}

void AttendOnCpu(const AttendCall& call, AttendScratch* scratch, int worker, int workers) {
  HWY_DYNAMIC_DISPATCH(AttendItems)(call, scratch, worker, workers);
}

}  // namespace tersekv
#endif  // HWY_ONCE
