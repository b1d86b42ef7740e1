// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "hosts/llama/preload/say.h"

namespace tersekv::llama::preload {
namespace {

constexpr int32_t kLastPosition = std::numeric_limits<int32_t>::max();

}  // namespace

int32_t History::First(int32_t seq) const {
  const auto it = first_.find(seq);
  return it == first_.end() ? -1 : it->second;
}

int32_t History::Last(int32_t seq) const { return cache_->LastPosition(seq); }

void History::Empty(int32_t seq) {
  cache_->Remove(seq);
  first_.erase(seq);
  spoilt_.erase(seq);
}

bool History::Remove(int32_t seq, int32_t begin, int32_t end) {
  if (seq >= 0) return RemoveOne(seq, begin, end);
  std::vector<int32_t> all;
  for (const auto& [id, first] : first_) all.push_back(id);
  for (const auto& [id, why] : spoilt_) all.push_back(id);
  return std::all_of(all.begin(), all.end(), [&](int32_t id) { return RemoveOne(id, begin, end); });
}

// Positions of a sequence follow each other without gaps, so its tokens are [first, last].
bool History::RemoveOne(int32_t seq, int32_t begin, int32_t end) {
  begin = std::max(begin, 0);
  if (end < 0) end = kLastPosition;
  if (begin == 0 && end == kLastPosition) {
    Empty(seq);
    return true;
  }
  const int32_t first = First(seq), last = Last(seq);
  if (first < 0 || begin > last || end <= first || begin >= end) return true;  // none of its tokens
  if (begin <= first && end > last) {
    Empty(seq);
    return true;
  }
  if (end <= last) {
    Say(1, "sequence {}: positions {} to {} of {} to {} cannot be removed: this version removes the newest tokens only",
        seq, begin, end, first, last);
    return false;
  }
  if (const Status s = cache_->Truncate(seq, begin - first); !s.ok()) {
    Say(0, "sequence {}: {}", seq, s.message());
    return false;
  }
  return true;
}

void History::Copy(int32_t from, int32_t to, int32_t begin, int32_t end) {
  const int32_t first = First(from);
  if (from == to || first < 0) return;
  if (end < 0) end = kLastPosition;
  if (begin > first || First(to) >= 0) {
    Spoil(to,
          Unsupported(fmt::format("sequence {} was to take over a part of sequence {} from position {} on, or holds "
                                  "tokens already: this version copies into empty sequences, from the first token",
                                  to, from, begin)));
    return;
  }
  if (end <= first) return;
  if (const Status s = cache_->Fork(from, to); !s.ok()) {
    Spoil(to, s);
    return;
  }
  first_[to] = first;
  spoilt_.erase(to);
  if (end <= Last(to)) RemoveOne(to, end, -1);
}

void History::Keep(int32_t seq) {
  const std::map<int32_t, int32_t> held = first_;
  for (const auto& [id, first] : held) {
    if (id != seq) Empty(id);
  }
}

void History::Clear() {
  const std::map<int32_t, int32_t> held = first_;
  for (const auto& [id, first] : held) Empty(id);
  spoilt_.clear();
}

Status History::Usable(int32_t seq) const {
  const auto it = spoilt_.find(seq);
  return it == spoilt_.end() ? Status() : it->second;
}

void History::Spoil(int32_t seq, Status why) {
  Say(0, "sequence {} cannot go on until it is emptied: {}", seq, why.message());
  cache_->Remove(seq);
  first_.erase(seq);
  spoilt_[seq] = std::move(why);
}

History::Mark History::MarkOf(std::span<const StepToken> tokens) const {
  Mark mark;
  for (const StepToken& t : tokens) mark.emplace(t.seq, cache_->Length(t.seq));
  return mark;
}

void History::GoBack(const Mark& mark) {
  for (const auto& [seq, length] : mark) {
    if (length == 0) {
      Empty(seq);
    } else if (const Status s = cache_->Truncate(seq, length); !s.ok()) {
      Spoil(seq, s);
    }
  }
}

void History::Appended(std::span<const StepToken> tokens) {
  for (const StepToken& t : tokens) first_.emplace(t.seq, t.pos);
}

}  // namespace tersekv::llama::preload
