// SPDX-License-Identifier: Apache-2.0
// Starts that sequences share: a system prompt or a conversation so far is computed once, and a later sequence that
// begins with the same tokens takes it over. Pages are shared and counted once; the raw rows of each kept start are its
// own, and so a sequence that begins with one goes on bit for bit as if it had computed it itself. For one thread, as
// the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv {

class PrefixCache {
 public:
  // cache outlives it. Ids from first_id on are its own sequences; it keeps at most `most` starts. One whose tokens
  // were removed from the cache meanwhile (KvCache::Keep, RemoveRange, Truncate) is forgotten by the next Keep or
  // Begin.
  explicit PrefixCache(KvCache* cache, size_t most = 16, int32_t first_id = 1 << 30);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Keeps what sequence `seq` holds now: `tokens`, Length(seq) of them. The start that was not used for longest goes
  // when there are too many, or when the budget asks for it. kOutOfBudget: it was not kept.
  Status Keep(int32_t seq, std::span<const int32_t> tokens);
  // Gives the empty sequence `seq` the longest kept start of `tokens` of at most `most` tokens; says how many that are,
  // 0 for none. A start counts whole, or cut by at most CacheConfig::rollback tokens (raw specs: by any number): what a
  // deeper cut leaves would not be what a fresh sequence has (docs/decisions/0004-after-a-truncation.md).
  Result<int64_t> Begin(int32_t seq, std::span<const int32_t> tokens, int64_t most);
  // Gives up the start that was not used for longest, for memory; false: there is none.
  bool Evict();

  size_t size() const { return starts_.size(); }  // since the last Keep or Begin some may have been removed

 private:
  struct Start {
    int32_t id = 0;
    std::vector<int32_t> tokens;
    std::vector<uint64_t> chain;  // by page of tokens: hash of it and of all before it
  };
  void ForgetRemoved();  // starts that are not in the cache as they were kept
  std::vector<uint64_t> Chain(std::span<const int32_t> tokens) const;
  int64_t Common(const Start& start, std::span<const int32_t> tokens, const std::vector<uint64_t>& chain) const;

  KvCache* cache_;
  size_t most_;
  int32_t next_id_;
  std::list<Start> starts_;  // last used first
};

}  // namespace tersekv
