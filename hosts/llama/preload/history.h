// SPDX-License-Identifier: Apache-2.0
// The packed cache of one context with the sequence operations of llama_memory_*: what they do to positions, and what
// they return, is what llama.cpp's own cache does. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tersekv/cache.h"

namespace tersekv::llama::preload {

class History {
 public:
  explicit History(std::unique_ptr<KvCache> cache) : cache_(std::move(cache)) {}

  KvCache* cache() { return cache_.get(); }
  const KvCache& cache() const { return *cache_; }

  // Ranges are positions [begin, end); negative: from the first, to the last. Sequences below 0: all of them.
  bool Remove(int32_t seq, int32_t begin, int32_t end);
  void Copy(int32_t from, int32_t to, int32_t begin, int32_t end);
  void Keep(int32_t seq);
  // Adds delta to positions; tokens that come below 0 go. rotations: as KvCache::Shift.
  void Shift(int32_t seq, int32_t begin, int32_t end, int32_t delta, std::span<const KeyRotation> rotations);
  void Clear();
  int32_t First(int32_t seq) const { return cache_->FirstPosition(seq); }  // position, -1 when empty
  int32_t Last(int32_t seq) const { return cache_->LastPosition(seq); }

  // An operation that returns nothing has failed for this sequence: it must not be decoded before it is emptied.
  Status Usable(int32_t seq) const;
  void Spoil(int32_t seq, Status why);

  // The lengths of the sequences of a batch, to go back to when it fails.
  using Mark = std::map<int32_t, int64_t>;
  Mark MarkOf(std::span<const StepToken> tokens) const;
  void GoBack(const Mark& mark);

  // Told of each sequence (below 0: all) whose tokens were removed, replaced or turned; not of those that are appended.
  void SetEdited(std::function<void(int32_t)> edited) { edited_ = std::move(edited); }

  // A number that grows with each change; from 1 on. Changed: by someone else.
  uint64_t changes() const { return changes_; }
  void Changed() { ++changes_; }

 private:
  bool RemoveOne(int32_t seq, int32_t begin, int32_t end);
  void Empty(int32_t seq);

  void Edited(int32_t seq) {
    if (edited_ != nullptr) edited_(seq);
  }

  std::unique_ptr<KvCache> cache_;
  std::function<void(int32_t)> edited_;
  std::map<int32_t, Status> spoilt_;
  uint64_t changes_ = 1;
};

}  // namespace tersekv::llama::preload
