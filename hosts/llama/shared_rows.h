// SPDX-License-Identifier: Apache-2.0
// Tokens that belong to several sequences: the engine computes one row of each, the cache takes one a sequence and
// answers each of them; the engine is given the answer of the first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tersekv/cache.h"

namespace tersekv::llama {

class SharedRows {
 public:
  // rows: the engine's row of each token of the step, ascending from 0 on. Inactive when each token has its own.
  void Start(const CacheConfig& config, std::span<const uint32_t> rows);
  bool active() const { return active_; }
  // Of the copies: as much as the largest step took.
  size_t bytes() const;

  // Rows of `width` values as KvCache::WriteRows takes them, width * 4 bytes apart; valid until the worker's next call.
  const float* Spread(const float* rows, ptrdiff_t stride, size_t width, int worker);
  // For KvCache::Attend, in the place of the engine's queries.
  Queries Spread(const Queries& given, int layer, int worker);
  // After Attend, by each worker: the last one gives the engine its answers.
  void Gather(const Queries& given, int layer, int workers);

 private:
  bool active_ = false;
  std::vector<uint32_t> rows_;
  std::vector<LayerShape> shapes_;
  std::vector<std::vector<float>> in_;  // by worker
  std::vector<float> out_;              // [tokens, heads, head_dim_v]
  std::atomic<int> finished_ = 0;
};

}  // namespace tersekv::llama
