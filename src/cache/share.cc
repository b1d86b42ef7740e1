// SPDX-License-Identifier: Apache-2.0
// Full pages with equal bytes are held once, whichever sequences they are of (docs/decisions/0012-equal-pages.md).
#include <algorithm>

#include "src/cache/history.h"

namespace tersekv {

// Those from page `first` of each layer on that are full. Whoever writes into a shared page copies it first.
void History::SharePages(Sequence* s, size_t first) {
  if (!config_.share_pages) return;
  const int64_t packed = std::max<int64_t>(s->packed_end - config_.spec.sink, 0);
  const auto whole = static_cast<size_t>(packed / config_.spec.page);
  for (SequenceLayer& layer : s->layers) {
    for (size_t p = std::max(first, layer.gone); p < whole; ++p) {
      PageRef& own = layer.pages[p];
      Page* equal = pool_.Equal({own.data(), own.bytes()});
      if (equal == nullptr) {
        pool_.Remember(own.page());
      } else {
        own = PageRef(&pool_, equal);  // itself, perhaps
      }
    }
  }
}

}  // namespace tersekv
