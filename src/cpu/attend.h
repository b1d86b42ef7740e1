// SPDX-License-Identifier: Apache-2.0
// Attention of the running step on the CPU.
#pragma once

#include <cstddef>
#include <vector>

#include "src/attention/plan.h"
#include "src/base/aligned.h"
#include "src/cache/history.h"
#include "tersekv/attention.h"

namespace tersekv {

// Memory of one worker for the largest tile of a plan.
class AttendScratch {
 public:
  void Reserve(const AttendPlan& plan, const LayerShape& shape, int page_tokens);
  size_t bytes() const { return floats_ * sizeof(float); }

  float *q_raw = nullptr, *q_rotated = nullptr;  // [rows, head_dim_k]
  float* q_mean = nullptr;                       // [rows] <q, mean>
  float *slope = nullptr, *alpha = nullptr;      // [rows]
  float* k_tile = nullptr;                       // [head_dim_k, tile_tokens]
  float* v_tile = nullptr;                       // [tile_tokens, stride]
  float* scores = nullptr;                       // [rows, tile_tokens]
  float* row = nullptr;                          // [2 * max head_dim]
  float* packed_fold = nullptr;                  // StateFold memory
  float* raw_fold = nullptr;

 private:
  size_t floats_ = 0;
  AlignedArray<float> memory_;
};

struct AttendCall {
  const History* history = nullptr;
  const AttendPlan* plan = nullptr;
  int layer = 0;
  AttentionParams params;
  Queries queries;
};

// Items worker, worker + workers, ... of the plan. The worker that finishes a tile last joins its parts.
void AttendOnCpu(const AttendCall& call, AttendScratch* scratch, int worker, int workers);

}  // namespace tersekv
