// SPDX-License-Identifier: Apache-2.0
#include "src/attention/softmax_state.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "src/base/check.h"

namespace tersekv {

void SoftmaxState::Clear(int rows) const {
  for (int r = 0; r < rows; ++r) {
    m[r] = -std::numeric_limits<float>::infinity();
    l[r] = 0;
  }
  std::memset(acc, 0, static_cast<size_t>(rows) * stride * sizeof(float));
}

void MergeStates(const SoftmaxState& into, const SoftmaxState& from, int rows, int values) {
  for (int r = 0; r < rows; ++r) {
    if (from.l[r] == 0) continue;
    float* a = into.acc + static_cast<size_t>(r) * into.stride;
    const float* b = from.acc + static_cast<size_t>(r) * from.stride;
    if (into.l[r] == 0) {
      into.m[r] = from.m[r];
      into.l[r] = from.l[r];
      std::memcpy(a, b, static_cast<size_t>(values) * sizeof(float));
      continue;
    }
    const float m = into.m[r] > from.m[r] ? into.m[r] : from.m[r];
    const float wa = std::exp(into.m[r] - m);
    const float wb = std::exp(from.m[r] - m);
    into.m[r] = m;
    into.l[r] = into.l[r] * wa + from.l[r] * wb;
    for (int c = 0; c < values; ++c) a[c] = a[c] * wa + b[c] * wb;
  }
}

int StateFold::Slots(int64_t pushed) {
  constexpr int64_t kAny = 26;  // the one being filled and one for each level of 2^31 tokens
  return static_cast<int>(pushed + 1 < kAny ? pushed + 1 : kAny);
}

SoftmaxState StateFold::Next() {
  TERSEKV_CHECK(used_ < slots_);
  const SoftmaxState state = Slot(used_);
  state.Clear(rows_);
  return state;
}

void StateFold::Push(int level) { Add({level, false, used_++}); }

void StateFold::PushEmpty(int level) { Add({level, true, -1}); }

void StateFold::Add(Entry entry) {
  TERSEKV_CHECK(size_ < static_cast<int>(std::size(stack_)));
  stack_[size_++] = entry;
  while (size_ >= 2 && stack_[size_ - 1].level >= 0 && stack_[size_ - 1].level == stack_[size_ - 2].level) JoinTop();
}

void StateFold::JoinTop() {
  Entry& a = stack_[size_ - 2];
  const Entry& b = stack_[size_ - 1];
  if (!a.empty && !b.empty) {
    MergeStates(Slot(a.slot), Slot(b.slot), rows_, values_);
    --used_;
  } else if (a.empty) {
    a.empty = b.empty;
    a.slot = b.slot;
  }
  ++a.level;
  --size_;
}

SoftmaxState StateFold::Finish() {
  while (size_ >= 2) JoinTop();
  if (size_ == 0 || stack_[0].empty) {
    const SoftmaxState state = Next();
    return state;
  }
  return Slot(stack_[0].slot);
}

}  // namespace tersekv
