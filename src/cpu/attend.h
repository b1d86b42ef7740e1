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
  float* q_unit = nullptr;                       // [rows] value of 1 in q_pairs
  uint32_t* q_pairs = nullptr;                   // [rows, head_dim_k / 2], see PairRows
  int32_t* q_start = nullptr;                    // [rows]
  float* slope = nullptr;                        // [rows] of ALiBi
  float* reference = nullptr;                    // [rows] score whose weight is 1
  float *alpha = nullptr, *beta = nullptr;       // [rows] factors of what is there and of what comes
  float *k_scale = nullptr, *v_scale = nullptr;  // [tile_tokens]
  float* k_tile = nullptr;                       // [head_dim_k, tile_tokens]
  float* v_tile = nullptr;                       // [tile_tokens, stride]
  float* scores = nullptr;                       // [rows, tile_tokens]
  uint32_t* w_pairs = nullptr;                   // [rows, tile_tokens / 2], see PairRows
  int32_t* w_start = nullptr;                    // [rows]
  float* row = nullptr;                          // [4 * max head_dim]
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
