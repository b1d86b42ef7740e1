// SPDX-License-Identifier: Apache-2.0
#include "tersekv/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "src/cache/sequence.h"

namespace tersekv {

size_t F16Bytes(const std::vector<LayerShape>& layers, int64_t tokens) {
  size_t values = 0;
  for (const LayerShape& s : layers) {
    values += RowWidth(s, Kv::kK) + RowWidth(s, Kv::kV);
  }
  return 2 * values * static_cast<size_t>(tokens);
}

Result<int64_t> CapacityTokens(const CacheConfig& config, size_t bytes, int sequences) {
  if (sequences < 1) return InvalidArgument(fmt::format("{} sequences: the least is 1", sequences));
  CacheConfig one = config;
  one.max_workers = 1;
  one.byte_budget = std::max<size_t>(bytes / static_cast<size_t>(sequences), 1);
  const Result<std::unique_ptr<KvCache>> cache = KvCache::Create(one);
  if (!cache) {
    if (cache.error().code() == StatusCode::kOutOfBudget) return int64_t{0};  // not even its statistics
    return cache.error();
  }
  return (*cache)->TokensThatFit(0);
}

Result<size_t> CapacityBytes(const CacheConfig& config, int64_t tokens, int sequences) {
  size_t bytes = FormulaBytes(config, tokens) * static_cast<size_t>(std::max(sequences, 1));
  for (;;) {
    const Result<int64_t> fits = CapacityTokens(config, bytes, sequences);
    if (!fits) return fits.error();
    if (*fits >= tokens) return bytes;
    bytes += std::max<size_t>(bytes / 128, 4096);
  }
}

}  // namespace tersekv
