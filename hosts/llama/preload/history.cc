// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/history.h"

#include <fmt/format.h>

#include <algorithm>

#include "hosts/llama/preload/say.h"

namespace tersekv::llama::preload {

void History::Empty(int32_t seq) {
  Changed();
  Edited(seq);
  cache_->Remove(seq);
  spoilt_.erase(seq);
}

bool History::Remove(int32_t seq, int32_t begin, int32_t end) {
  if (seq >= 0) return RemoveOne(seq, begin, end);
  if (begin <= 0 && end < 0) {
    Clear();
    return true;
  }
  bool all = true;
  for (const int32_t id : cache_->Sequences()) all &= RemoveOne(id, begin, end);
  return all;
}

bool History::RemoveOne(int32_t seq, int32_t begin, int32_t end) {
  if (begin <= 0 && end < 0) {
    Empty(seq);
    return true;
  }
  Changed();
  Edited(seq);
  const Status s = cache_->RemoveRange(seq, begin, end);
  if (!s.ok()) Say(0, "sequence {}: {}", seq, s.message());
  return s.ok();
}

void History::Copy(int32_t from, int32_t to, int32_t begin, int32_t end) {
  if (from == to) return;
  if (const Status s = Usable(from); !s.ok()) return Spoil(to, s);
  Changed();
  // llama.cpp would lay the copied tokens beside those of `to`.
  if (cache_->Length(to) > 0) {
    return Spoil(to,
                 Unsupported(fmt::format("sequence {} was copied into sequence {}, which holds tokens: this version "
                                         "copies into empty sequences only",
                                         from, to)));
  }
  spoilt_.erase(to);
  if (const Status s = cache_->Copy(from, to, begin, end); !s.ok()) Spoil(to, s);
}

void History::Keep(int32_t seq) {
  Changed();
  Edited(-1);
  cache_->Keep(seq);
  std::erase_if(spoilt_, [seq](const auto& one) { return one.first != seq; });
}

void History::Shift(int32_t seq, int32_t begin, int32_t end, int32_t delta, std::span<const KeyRotation> rotations) {
  Changed();
  Edited(seq);
  const std::vector<int32_t> all = cache_->Sequences();
  for (const int32_t id : all) {
    if (seq >= 0 && id != seq) continue;
    if (const Status s = cache_->Shift(id, begin, end, delta, rotations); !s.ok()) Spoil(id, s);
  }
}

void History::Clear() {
  Changed();
  Edited(-1);
  const std::vector<int32_t> all = cache_->Sequences();
  for (const int32_t id : all) cache_->Remove(id);
  spoilt_.clear();
}

Status History::Usable(int32_t seq) const {
  const auto it = spoilt_.find(seq);
  return it == spoilt_.end() ? Status() : it->second;
}

void History::Spoil(int32_t seq, Status why) {
  Say(0, "sequence {} cannot go on until it is emptied: {}", seq, why.message());
  Changed();
  Edited(seq);
  cache_->Remove(seq);
  spoilt_[seq] = std::move(why);
}

History::Mark History::MarkOf(std::span<const StepToken> tokens) const {
  Mark mark;
  for (const StepToken& t : tokens) mark.emplace(t.seq, cache_->Length(t.seq));
  return mark;
}

void History::GoBack(const Mark& mark) {
  Changed();
  for (const auto& [seq, length] : mark) {
    Edited(seq);
    if (length == 0) {
      Empty(seq);
    } else if (const Status s = cache_->Truncate(seq, length); !s.ok()) {
      Spoil(seq, s);
    }
  }
}

}  // namespace tersekv::llama::preload
