// SPDX-License-Identifier: Apache-2.0
// Checks packed rows against raw ones while a program runs: the statistics of a sequence are measured once, and keys or
// values that change later are stored worse. Rows of a few tokens of one layer and KV head are kept as they came; when
// they have left the raw window, attention over those tokens is computed from both. One context's; called by its hook.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/calibration.h"

namespace tersekv::llama::preload {

struct DriftReport {
  int64_t checks = 0, warnings = 0;  // warnings: checks above the limit
  double last = 0, largest = 0;      // relative errors
};

class DriftProbe : public StatisticsSink {
 public:
  static constexpr size_t kTokens = 16;

  // period: forward passes from a check to the next one's first token, 0 = none. limit: the largest relative error that
  // is not warned of; 0 = DefaultLimit.
  DriftProbe(const KvCache* cache, int64_t period, double limit);
  // Four times what the bits of the spec cost on values that are nearly Gaussian, 0.05 to 1.
  static double DefaultLimit(double bits);
  bool active() const { return period_ > 0; }

  // Tokens of several sequences may interleave. Workers other than 0 do nothing.
  Status BeginStep(std::span<const StepToken> tokens) override;
  void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) override;
  void Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int workers) override;

  // The tokens of the steps are history now. A warning when the check says so, empty otherwise.
  std::string Ended();
  // Tokens of a sequence were removed, replaced or turned; below 0: of any. What was kept of them is dropped.
  void Edited(int32_t seq);

  const DriftReport& report() const { return report_; }

 private:
  void Forget();
  double Compare(std::span<const float> k, std::span<const float> v) const;
  std::vector<float> Output(std::span<const float> k, std::span<const float> v, size_t stride_k, size_t stride_v) const;
  const LayerShape& shape() const { return cache_->config().layers[static_cast<size_t>(layer_)]; }

  const KvCache* cache_;
  int64_t period_ = 0;
  double limit_ = 0;
  DriftReport report_;
  int64_t passes_ = 0, next_ = 1, begun_ = 0;
  int64_t turn_ = 0;  // picks the layer and the head
  int32_t seq_ = -1;  // whose tokens are kept; -1: none
  int layer_ = 0, head_ = 0;
  std::vector<int32_t> positions_;
  std::vector<float> k_, v_;  // [tokens, head_dim]
  std::vector<size_t> rows_;  // of the step, that are kept
  int64_t query_row_ = -1;
  std::vector<float> query_;  // empty: none yet
  float scale_ = 1, softcap_ = 0;
};

}  // namespace tersekv::llama::preload
