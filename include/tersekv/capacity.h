// SPDX-License-Identifier: Apache-2.0
// How many tokens fit into how many bytes, before a cache is made. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv {

// What `tokens` rows of K and V take as f16.
size_t F16Bytes(const std::vector<LayerShape>& layers, int64_t tokens);

// Tokens of each of `sequences` sequences that share `bytes` evenly: what the cache itself says fits into an even share
// of the budget. prefix: tokens that all of them begin with, whose full pages count once (CacheConfig::share_pages,
// once they are equal). Windowed layers are counted with what
// they hold between steps: add the tokens of a step to keep_back. config.byte_budget is not read. Errors as of
// KvCache::Create.
Result<int64_t> CapacityTokens(const CacheConfig& config, size_t bytes, int sequences, int64_t prefix = 0);

// A budget that holds `sequences` sequences of `tokens` each, and no more than 1/64 above the least.
Result<size_t> CapacityBytes(const CacheConfig& config, int64_t tokens, int sequences, int64_t prefix = 0);

}  // namespace tersekv
