// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/draft_rows.h"

#include <cstring>

#include "src/base/check.h"
#include "src/cache/sequence.h"

namespace tersekv::llama {

void DraftRows::Start(const CacheConfig& config, std::span<const StepToken> tokens) {
  tokens_.assign(tokens.begin(), tokens.end());
  sides_.resize(2 * config.layers.size());
  for (size_t i = 0; i < sides_.size(); ++i) {
    sides_[i].width = RowWidth(config.layers[i / 2], i % 2 == 0 ? Kv::kK : Kv::kV);
    sides_[i].rows.assign(sides_[i].width * tokens_.size(), 0.0f);
  }
}

void DraftRows::Store(int layer, Kv side, const float* rows, ptrdiff_t row_stride) {
  Side& kept = sides_[2 * static_cast<size_t>(layer) + static_cast<size_t>(side)];
  if (kept.width == 0) return;  // values of a latent layer
  const char* from = reinterpret_cast<const char*>(rows);
  for (size_t t = 0; t < tokens_.size(); ++t, from += row_stride) {
    std::memcpy(kept.rows.data() + t * kept.width, from, kept.width * sizeof(float));
  }
}

Status DraftRows::Append(size_t tokens, KvCache* cache) const {
  if (tokens == 0) return {};
  TERSEKV_RETURN_IF_ERROR(cache->BeginStep(this->tokens().first(tokens)));
  for (size_t i = 0; i < sides_.size(); ++i) {
    cache->WriteRows(static_cast<int>(i / 2), i % 2 == 0 ? Kv::kK : Kv::kV, sides_[i].rows.data(),
                     static_cast<ptrdiff_t>(sides_[i].width * sizeof(float)), 0, 1);
  }
  return cache->EndStep();
}

}  // namespace tersekv::llama
