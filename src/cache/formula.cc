// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/cache/sequence.h"
#include "src/codec/page_layout.h"
#include "tersekv/cache.h"

namespace tersekv {

size_t FormulaBytes(const CacheConfig& config, int64_t tokens) {
  const KvSpec& spec = config.spec;
  const bool whole_pages = PacksWholePages(config);
  int64_t packed = std::max<int64_t>(tokens - spec.sink - spec.win, 0);
  if (whole_pages) packed -= packed % spec.page;
  const size_t pages = static_cast<size_t>((packed + spec.page - 1) / spec.page);
  size_t bytes = static_cast<size_t>(tokens) * sizeof(int32_t);
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerShape& shape = config.layers[l];
    const size_t width_k = RowWidth(shape, Kv::kK), width_v = RowWidth(shape, Kv::kV);
    size_t held = pages;
    if (const int64_t window = config.windows.empty() ? 0 : config.windows[l]; window > 0) {
      const int64_t behind = tokens + 1 - std::max(config.rollback, config.keep_back) - window - spec.sink;
      const int64_t whole = std::max<int64_t>(std::min(packed - config.rollback, behind), 0) / spec.page;
      held -= static_cast<size_t>(whole);
    }
    bytes += held * (PageLayout::Make(LayerSpec(config, l), shape).page_bytes + sizeof(Page));
    bytes += pages * sizeof(PageRef);
    const int64_t ring = spec.win + config.rollback + (whole_pages ? spec.page : 0);
    const int64_t window = std::min<int64_t>(ring, std::max<int64_t>(tokens - spec.sink, 0));
    if (!spec.raw()) bytes += static_cast<size_t>(spec.sink + window) * (width_k + width_v) * sizeof(uint16_t);
    const StatisticsParts stats = PartsOf(config);
    const size_t means = stats.mean ? 1 : 0;
    bytes +=
        sizeof(float) * ((means + (stats.scale[0] ? 2 : 0)) * width_k + (means + (stats.scale[1] ? 2 : 0)) * width_v);
  }
  return bytes;
}

}  // namespace tersekv
