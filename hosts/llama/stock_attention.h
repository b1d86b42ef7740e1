// SPDX-License-Identifier: Apache-2.0
// llama.cpp's own attention kernel by itself, on a cache laid out as llama.cpp lays it out: the peer of bench attend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv::llama {

class StockAttention {
 public:
  // `layers` layers of one sequence of `depth` + `queries` tokens; the queries are the last ones. cache: "f16", "q8_0",
  // "q4_0" or another type of llama.cpp. rows: fp32 [kv_heads * head_dim] of token t, for K and V of every layer,
  // repeated when there are fewer.
  static Result<std::unique_ptr<StockAttention>> Create(const LayerShape& shape, int layers, int64_t depth, int queries,
                                                        const std::string& cache, int threads,
                                                        const std::vector<std::vector<float>>& k_rows,
                                                        const std::vector<std::vector<float>>& v_rows);
  virtual ~StockAttention() = default;

  // q: [queries, heads, head_dim_k] of every layer alike. One pass over all layers; its seconds.
  virtual double Run(const std::vector<float>& q) = 0;
  // [queries, heads, head_dim_v] of layer 0.
  virtual std::vector<float> Output() const = 0;
  virtual size_t cache_bytes() const = 0;
};

}  // namespace tersekv::llama
