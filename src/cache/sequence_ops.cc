// SPDX-License-Identifier: Apache-2.0
// Operations on sequences between steps (docs/decisions/0008-sequence-operations.md).
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/base/check.h"
#include "src/cache/history.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

bool AnyToken(const Sequence& sequence, int64_t begin, int64_t end) {
  for (int64_t order = begin; order < end; ++order) {
    if (!IsRemoved(sequence.positions[static_cast<size_t>(order)])) return true;
  }
  return false;
}

// Places without a token take the position before them; counts them.
void RefreshRemoved(Sequence* sequence) {
  int32_t before = 0;
  sequence->removed = 0;
  for (int32_t& stored : sequence->positions) {
    if (IsRemoved(stored)) {
      stored = ~before;
      ++sequence->removed;
    } else {
      before = stored;
    }
  }
}

}  // namespace

Status History::Truncate(int32_t id, int64_t tokens) {
  if (tokens < 0) return InvalidArgument(fmt::format("cannot truncate to {} tokens: the least is 0", tokens));
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || tokens >= it->second.tokens()) return {};
  if (tokens == 0) {
    Remove(id);
    return {};
  }
  int64_t end = tokens;
  if (it->second.removed > 0) {
    end = 0;
    for (int64_t left = tokens; left > 0; ++end) {
      left -= IsRemoved(it->second.positions[static_cast<size_t>(end)]) ? 0 : 1;
    }
  }
  return CutBack(&it->second, end);
}

// A query behind position `newest` must find what it sees of windowed layers when tokens [begin, end) have moved by
// delta.
Status History::CheckWindows(const Sequence& sequence, int64_t newest, int64_t begin, int64_t end,
                             int64_t delta) const {
  for (size_t l = 0; l < sequence.layers.size(); ++l) {
    const int64_t gone = config_.spec.sink + static_cast<int64_t>(sequence.layers[l].gone) * config_.spec.page;
    for (int64_t order = gone - 1; order >= config_.spec.sink && sequence.layers[l].gone > 0; --order) {
      const int32_t stored = sequence.positions[static_cast<size_t>(order)];
      const int64_t position = PositionOf(stored) + (order >= begin && order < end ? delta : 0);
      if (position < newest + 2 - Window(l)) break;
      if (IsRemoved(stored) || position > newest) continue;
      return Unsupported(fmt::format(
          "layer {} attends to the newest {} positions and has given back those before {}: what follows "
          "position {} would see them; remove the sequence and run it again, or make the cache with "
          "rollback above {}",
          l, Window(l), PositionOf(sequence.positions[static_cast<size_t>(std::min(gone, sequence.length() - 1))]),
          newest, std::max(config_.rollback, config_.keep_back)));
    }
  }
  return {};
}

// Keeps places [0, end): at least one token.
Status History::CutBack(Sequence* s, int64_t end) {
  while (IsRemoved(s->positions[static_cast<size_t>(end - 1)])) --end;
  const int32_t newest = s->positions[static_cast<size_t>(end - 1)];
  TERSEKV_RETURN_IF_ERROR(CheckWindows(*s, newest, 0, 0, 0));
  const int64_t sink = config_.spec.sink, first_raw = s->FirstRaw(sink);
  // Tokens that the sequence would still have raw become so again as far as their rows are there.
  const bool unmeasured = NeedsStatistics() && end < sink + kStatsTokens;
  const int64_t natural = unmeasured ? sink : std::max(sink, Reach(end));
  const int64_t next_page = PageStart(first_raw + config_.spec.page - 1);
  const int64_t packed_end =
      config_.spec.raw() ? end
                         : std::min({s->packed_end, end, std::max(natural, whole_pages_ ? next_page : first_raw)});
  for (size_t l = 0; l < s->layers.size(); ++l) {
    const int64_t packed = std::max<int64_t>(packed_end - sink, 0), gone = static_cast<int64_t>(s->layers[l].gone);
    if (packed % config_.spec.page == 0 || gone <= packed / config_.spec.page) continue;
    return Unsupported(
        fmt::format("layer {} has given back the page that would follow position {}; remove the sequence "
                    "and run it again, or make the cache with rollback above {}",
                    l, newest, config_.rollback));
  }
  s->raw_begin = config_.spec.raw() ? 0 : std::min(std::max(s->raw_begin, s->length() - s->ring_capacity), end);
  s->packed_end = packed_end;
  s->positions.resize(static_cast<size_t>(end));
  RefreshRemoved(s);
  if (s->packed_end <= sink) {  // nothing packed survives: measured again as the sequence grows anew
    s->packed_end = std::min(s->packed_end, sink);
    if (NeedsStatistics()) s->stats.reset();
  } else if (whole_pages_) {  // the last page becomes raw rows again, unless these are still there
    const int64_t begin = PageStart(s->packed_end);
    s->raw_begin = PageStart(std::max(s->raw_begin, sink) + config_.spec.page - 1);
    if (s->raw_begin > begin) {
      UnpackTail(s, begin);
      s->raw_begin = begin;
    }
    s->packed_end = begin;
    if (begin <= sink && NeedsStatistics()) s->stats.reset();
  }
  const int64_t packed = std::max<int64_t>(s->packed_end - sink, 0);
  const size_t pages = static_cast<size_t>((packed + config_.spec.page - 1) / config_.spec.page);
  for (SequenceLayer& layer : s->layers) {
    while (layer.pages.size() > pages) layer.pages.pop_back();
    layer.gone = std::min(layer.gone, pages);
  }
  if (s->removed > 0) {
    if (s->packed_end > sink) UnlinkPages(s);
    if (s->packed_end <= sink && !config_.spec.raw()) CompactRemoved(s);
    RefreshRemoved(s);
  }
  TERSEKV_CHECK(Recharge(s));  // it takes less now
  return {};
}

// Nothing is packed: what was removed leaves no trace, and statistics are measured anew.
void History::CompactRemoved(Sequence* s) {
  for (int64_t end = s->length(); end > 0;) {
    int64_t begin = end - 1;
    if (IsRemoved(s->positions[static_cast<size_t>(begin)])) {
      while (begin > 0 && IsRemoved(s->positions[static_cast<size_t>(begin - 1)])) --begin;
      CompactRawRows(config_, begin, end, s);
    }
    end = begin;
  }
  s->packed_end = std::min(s->packed_end, s->length());
  s->raw_begin = 0;
  if (NeedsStatistics()) s->stats.reset();
}

Status History::RemoveRange(int32_t id, int64_t begin, int64_t end) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return {};
  Sequence& sequence = it->second;
  const int64_t first = sequence.OrderOf(begin), last = end < 0 ? sequence.length() : sequence.OrderOf(end);
  if (first >= last || !AnyToken(sequence, first, last)) return {};
  if (!AnyToken(sequence, 0, first) && !AnyToken(sequence, last, sequence.length())) {
    Remove(id);
    return {};
  }
  if (last == sequence.length()) return CutBack(&sequence, first);
  RemoveInside(&sequence, first, last);
  return {};
}

// Tokens [begin, end) leave, others follow. Raw ones move up; packed ones and sinks keep their places, so that records
// stay what they are and forks share them.
void History::RemoveInside(Sequence* s, int64_t begin, int64_t end) {
  const int64_t sink = config_.spec.sink;
  if (s->packed_end <= sink && !config_.spec.raw()) {
    CompactRawRows(config_, begin, end, s);
    s->packed_end = std::min(s->packed_end, s->length());
    s->raw_begin = 0;
    if (NeedsStatistics()) s->stats.reset();
  } else {
    if (!config_.spec.raw()) s->raw_begin = std::max(s->raw_begin, s->length() - s->ring_capacity);
    if (end > s->packed_end) CompactRawRows(config_, std::max(begin, s->packed_end), end, s);
    for (int64_t order = begin; order < std::min(end, s->packed_end); ++order) {
      int32_t& stored = s->positions[static_cast<size_t>(order)];
      if (!IsRemoved(stored)) stored = ~stored;
    }
    UnlinkPages(s);
  }
  RefreshRemoved(s);
  TERSEKV_CHECK(Recharge(s));
}

// Packed pages without tokens leave the sequence, with their places. When no packed token is left, what was removed
// leaves no trace.
void History::UnlinkPages(Sequence* s) {
  const int64_t sink = config_.spec.sink, page = config_.spec.page;
  const bool none = !AnyToken(*s, sink, s->packed_end) && !config_.spec.raw();
  const int64_t whole = none ? (s->packed_end - sink + page - 1) / page : (s->packed_end - sink) / page;
  const auto end_of = [&](int64_t p) { return std::min(sink + (p + 1) * page, s->packed_end); };
  std::vector<size_t> empty;
  int64_t moved = 0;
  for (int64_t p = 0; p < whole; ++p) {
    if (AnyToken(*s, sink + p * page, end_of(p))) continue;
    empty.push_back(static_cast<size_t>(p));
    moved += end_of(p) - sink - p * page;
  }
  if (empty.empty()) return;
  const int64_t length = s->length();
  for (size_t l = 0; l < s->layers.size() && s->ring_capacity > 0; ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const size_t width = RowWidth(config_.layers[l], side), capacity = static_cast<size_t>(s->ring_capacity);
      if (width == 0) continue;
      AlignedArray<uint16_t>& ring = s->layers[l].ring[static_cast<int>(side)];
      AlignedArray<uint16_t> next = MakeAligned<uint16_t>(capacity * width);
      for (int64_t order = s->packed_end; order < length; ++order) {
        std::copy_n(ring.get() + static_cast<size_t>(order) % capacity * width, width,
                    next.get() + static_cast<size_t>(order - moved) % capacity * width);
      }
      ring = std::move(next);
    }
  }
  for (size_t i = empty.size(); i-- > 0;) {
    const ptrdiff_t p = static_cast<ptrdiff_t>(empty[i]);
    for (SequenceLayer& layer : s->layers) {
      layer.pages.erase(layer.pages.begin() + p);
      if (empty[i] < layer.gone) --layer.gone;
    }
    const auto at = s->positions.begin();
    s->positions.erase(at + sink + p * page, at + end_of(p));
  }
  s->packed_end -= moved;
  if (!config_.spec.raw()) s->raw_begin = s->packed_end;
  if (none) CompactRemoved(s);
}

// After a step: no query that is still to come, after at most `rollback` or `keep_back` tokens were taken back, sees
// them.
void History::GiveBackPages(Sequence* s) {
  const int64_t newest = s->length() - 1 - std::max(config_.rollback, config_.keep_back);
  if (config_.windows.empty() || newest < 0) return;
  for (size_t l = 0; l < s->layers.size(); ++l) {
    if (Window(l) == 0) continue;
    const int64_t first = int64_t{PositionOf(s->positions[static_cast<size_t>(newest)])} + 2 - Window(l);
    const int64_t reached = std::min(s->OrderOf(first), s->packed_end - config_.rollback);
    SequenceLayer& layer = s->layers[l];
    const int64_t whole = std::max<int64_t>(reached - config_.spec.sink, 0) / config_.spec.page;
    for (; layer.gone < static_cast<size_t>(whole); ++layer.gone) layer.pages[layer.gone] = PageRef();
  }
}

Status History::Fork(int32_t from, int32_t to) {
  if (to < 0) return InvalidArgument(fmt::format("sequence id {} is negative", to));
  const Sequence* source = Find(from);
  if (const Sequence* target = Find(to); target != nullptr && target->tokens() > 0) {
    return InvalidArgument(
        fmt::format("sequence {} holds {} tokens: remove it before forking into it", to, target->tokens()));
  }
  Remove(to);
  if (source == nullptr) return {};
  const size_t bytes = source->raw_bytes(config_) + source->table_bytes();
  if (!pool_.Charge(bytes)) {
    return OutOfBudget(
        fmt::format("forking sequence {} takes {} bytes for its raw rows and tables, {} are free of the "
                    "budget of {}",
                    from, bytes, pool_.available(), pool_.budget()));
  }
  Sequence copy = CloneSequence(config_, *source);
  copy.charged = bytes;
  sequences_.emplace(to, std::move(copy));
  return {};
}

Status History::Copy(int32_t from, int32_t to, int64_t begin, int64_t end) {
  const Sequence* source = Find(from);
  if (source == nullptr) return Fork(from, to);
  const int64_t first = source->OrderOf(begin), last = end < 0 ? source->length() : source->OrderOf(end);
  if (first >= last || !AnyToken(*source, first, last)) return Fork(-1, to);  // nothing to copy
  TERSEKV_RETURN_IF_ERROR(Fork(from, to));
  Status status = end < 0 ? Status() : RemoveRange(to, end, -1);
  if (status.ok() && begin > 0) status = RemoveRange(to, 0, begin);
  if (!status.ok()) Remove(to);
  return status;
}

void History::Remove(int32_t id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  pool_.Refund(it->second.charged);
  sequences_.erase(it);
}

void History::Keep(int32_t id) {
  for (const int32_t other : Sequences()) {
    if (other != id) Remove(other);
  }
}

std::vector<int32_t> History::Sequences() const {
  std::vector<int32_t> ids;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.tokens() > 0) ids.push_back(id);
  }
  return ids;
}

int32_t History::FirstPosition(int32_t id) const {
  const Sequence* s = Find(id);
  if (s == nullptr || s->tokens() == 0) return -1;
  size_t gone = 0;
  for (const SequenceLayer& layer : s->layers) gone = std::max(gone, layer.gone);
  int64_t order = gone > 0 ? config_.spec.sink + static_cast<int64_t>(gone) * config_.spec.page : 0;
  order = std::min(order, s->length() - 1);
  while (IsRemoved(s->positions[static_cast<size_t>(order)])) ++order;
  return s->positions[static_cast<size_t>(order)];
}

}  // namespace tersekv
