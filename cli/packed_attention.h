// SPDX-License-Identifier: Apache-2.0
// Our attention by itself: a KvCache of made-up rows and the attention of one step over it, layer by layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/cache.h"

namespace tersekv::cli {

// Rows of a made-up model: `count` rows of [width] with a mean and a spread of each channel, as real keys have.
std::vector<std::vector<float>> NoiseRows(size_t width, size_t count, uint64_t seed);

struct StepSeconds {
  double append = 0, attend = 0;
};

class PackedAttention {
 public:
  // One sequence of `depth` tokens; a step adds `queries` tokens. rows: of token t, repeated when there are fewer.
  static Result<std::unique_ptr<PackedAttention>> Create(const std::string& spec, const LayerShape& shape, int layers,
                                                         int64_t depth, int queries, int threads, Arithmetic arithmetic,
                                                         const std::vector<std::vector<float>>& k_rows,
                                                         const std::vector<std::vector<float>>& v_rows);
  virtual ~PackedAttention() = default;

  // q: [queries, heads, head_dim_k] of every layer alike. One step over all layers; it is taken back.
  virtual Result<StepSeconds> Run(const std::vector<float>& q) = 0;
  virtual const std::vector<float>& Output() const = 0;  // [queries, heads, head_dim_v] of the last layer
  virtual CacheUsage Usage() const = 0;
};

}  // namespace tersekv::cli
