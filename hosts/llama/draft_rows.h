// SPDX-License-Identifier: Apache-2.0
// K and V of a forward pass that is not history yet: kept as the engine made them, so that any number of its first
// tokens can be appended as if they alone had been run.
#pragma once

#include <span>
#include <vector>

#include "tersekv/cache.h"

namespace tersekv::llama {

class DraftRows {
 public:
  void Start(const CacheConfig& config, std::span<const StepToken> tokens);
  void Store(int layer, Kv side, const float* rows, ptrdiff_t row_stride);  // of all tokens
  void Clear() { tokens_.clear(); }

  std::span<const StepToken> tokens() const { return tokens_; }
  Status Append(size_t tokens, KvCache* cache) const;  // the first `tokens`

 private:
  struct Side {
    size_t width = 0;         // values a row
    std::vector<float> rows;  // [tokens, width]
  };
  std::vector<StepToken> tokens_;
  std::vector<Side> sides_;  // by layer, K and V
};

}  // namespace tersekv::llama
