// SPDX-License-Identifier: Apache-2.0
#include "tersekv/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "src/cache/sequence.h"
#include "src/codec/page_layout.h"

namespace tersekv {

size_t F16Bytes(const std::vector<LayerShape>& layers, int64_t tokens) {
  size_t values = 0;
  for (const LayerShape& s : layers) {
    values += RowWidth(s, Kv::kK) + RowWidth(s, Kv::kV);
  }
  return 2 * values * static_cast<size_t>(tokens);
}

namespace {

// Of the full pages that a start of `prefix` tokens has in sequences of `tokens`. Windowed layers give them back.
size_t PrefixBytes(const CacheConfig& config, int64_t prefix, int64_t tokens) {
  const KvSpec& spec = config.spec;
  const int64_t packed = std::min(prefix, tokens - spec.win) - spec.sink,
                pages = std::max<int64_t>(packed, 0) / spec.page;
  size_t bytes = 0;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (!config.windows.empty() && config.windows[l] > 0) continue;
    bytes += static_cast<size_t>(pages) * PageLayout::Make(LayerSpec(config, l), config.layers[l]).page_bytes;
  }
  return bytes;
}

Result<int64_t> OwnTokens(const CacheConfig& config, size_t bytes, int sequences) {
  CacheConfig one = config;
  one.max_workers = 1;
  one.byte_budget = std::max<size_t>(bytes / static_cast<size_t>(sequences), 1);
  const Result<std::unique_ptr<KvCache>> cache = KvCache::Create(one);
  if (!cache) {
    if (cache.error().code() == StatusCode::kOutOfBudget) return int64_t{0};  // not even its statistics
    return cache.error();
  }
  if (std::all_of(config.windows.begin(), config.windows.end(), [](int32_t window) { return window == 0; })) {
    return (*cache)->TokensThatFit(0);
  }
  // What fits at once has nothing given back: the formula, with the blocks that tables grow by and 1% for what else is
  // rounded up.
  const size_t tables = kPositionBlock * sizeof(int32_t) + config.layers.size() * kPageBlock * sizeof(PageRef);
  int64_t fits = 0, fails = int64_t{1} << 40;
  while (fails - fits > 1) {
    const int64_t middle = fits + (fails - fits) / 2;
    const size_t needed = FormulaBytes(one, middle) + tables;
    (needed + needed / 100 <= one.byte_budget ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace

Result<int64_t> CapacityTokens(const CacheConfig& config, size_t bytes, int sequences, int64_t prefix) {
  if (sequences < 1) return InvalidArgument(fmt::format("{} sequences: the least is 1", sequences));
  const auto fit = [&](int64_t tokens) {  // what fits when sequences of so many share their start
    const size_t others = static_cast<size_t>(sequences - 1);
    return OwnTokens(config, bytes + others * PrefixBytes(config, prefix, tokens), sequences);
  };
  Result<int64_t> low = fit(0);
  if (!low || sequences == 1 || prefix <= 0) return low;
  const Result<int64_t> most = fit(prefix + config.spec.win + config.spec.page);
  if (!most) return most.error();
  for (int64_t high = *most + 1; high - *low > 1;) {
    const int64_t middle = *low + (high - *low) / 2;
    const Result<int64_t> fits = fit(middle);
    if (!fits) return fits.error();
    (*fits >= middle ? *low : high) = middle;
  }
  return low;
}

Result<size_t> CapacityBytes(const CacheConfig& config, int64_t tokens, int sequences, int64_t prefix) {
  const size_t n = static_cast<size_t>(std::max(sequences, 1));
  const size_t all = FormulaBytes(config, tokens) * n;
  size_t bytes = all - std::min(all, (n - 1) * PrefixBytes(config, prefix, tokens));
  for (;;) {
    const Result<int64_t> fits = CapacityTokens(config, bytes, sequences, prefix);
    if (!fits) return fits.error();
    if (*fits >= tokens) return bytes;
    bytes += std::max<size_t>(bytes / 128, 4096);
  }
}

}  // namespace tersekv
