// SPDX-License-Identifier: Apache-2.0
// What the collector keeps: sums of each layer and KV head. A head is touched by one worker at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "src/calibration/moments.h"
#include "tersekv/cache.h"
#include "tersekv/calibration.h"

namespace tersekv {

// First positions of a context: looked at for sinks, and left out of means and variances, because sinks stay raw.
inline constexpr int kLeadPositions = 16;
// Attention is measured for one query in 32 from position 64 on, in the first 2,048 tokens, whose keys are kept.
inline constexpr int kSampleFrom = 64, kSampleEvery = 32, kSampleTokens = 2048;
inline constexpr int64_t kLeastTokens = 64;  // after the first positions

struct LeadSums {
  int64_t count = 0;
  double square = 0;        // sum |k|^2
  std::vector<double> sum;  // [head_dim_k] sum k
};

struct HeadSums {
  explicit HeadSums(const LayerShape& shape);
  void Merge(const HeadSums& other);

  Moments k, v;
  std::vector<LeadSums> lead;  // [kLeadPositions]
  int64_t queries = 0;
  std::vector<double> query_square;  // [head_dim_k] sum q^2
  int64_t samples = 0;
  double spread = 0, peak = 0;  // sums over samples of sum p(1-p), sum p^2
  float attention_scale = 0;
  std::vector<float> keys;      // of the running context: [tokens up to kSampleTokens, head_dim_k]
  std::vector<double> weights;  // scratch of one query
};

class Collector : public StatisticsCollector {
 public:
  explicit Collector(const std::vector<LayerShape>& layers);

  Status BeginStep(std::span<const StepToken> tokens) override;
  void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) override;
  void Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int workers) override;
  int64_t tokens() const override { return tokens_; }
  Status Merge(const StatisticsCollector& other) override;
  Status MakeStatistics(const std::vector<std::vector<float>>& output_square, Profile* profile) const override;

 private:
  std::vector<LayerShape> layers_;
  std::vector<std::vector<HeadSums>> heads_;  // by layer, KV head
  int64_t begin_ = 0, end_ = 0;               // positions of the running step
  int64_t tokens_ = 0;
};

// The scale that makes the error of a product least (docs/calibration.md): (variance / weight)^(1/4), floored at 1e-3
// of the largest, geometric mean 1. weight: E q^2 of keys, (W_o^T W_o)_ii of values; all zero or empty: 1. out: [d].
void BalancedScale(const double* variance, const double* weight, size_t d, float* out);

}  // namespace tersekv
