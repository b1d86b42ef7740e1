// SPDX-License-Identifier: Apache-2.0
// Attention of the running step on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/attention/plan.h"
#include "src/base/aligned.h"
#include "src/cache/history.h"
#include "tersekv/attention.h"

namespace tersekv {

inline constexpr int kFastBits = 4;   // of Arithmetic::kFast: wider codes are worth 16 bits
inline constexpr int kMaxBlocks = 8;  // pages, or blocks of raw tokens, of a chunk
// Distance of rows of scores and words. Not a power of two, because such rows would fall on the same cache sets.
inline constexpr size_t kRowStride = kChunkTokens + 16;

// Memory of one worker for the largest tile of a plan; it does not grow with the history.
class AttendScratch {
 public:
  void Reserve(const AttendPlan& plan, const LayerShape& shape, int page_tokens);
  size_t bytes() const { return floats_ * sizeof(float); }

  float *q_raw = nullptr, *q_rotated = nullptr;  // [rows, head_dim_k]
  float* q_mean = nullptr;                       // [rows] <q, mean>
  float* q_poison = nullptr;                     // [rows] 0, or NaN when a value of the query is not finite
  float* q_unit = nullptr;                       // [rows] value of 1 in q_words
  uint32_t* q_words = nullptr;                   // [rows, kRowStride], see FactorRows
  int32_t* q_start = nullptr;                    // [rows]
  float* slope = nullptr;                        // [rows] of ALiBi
  float *k_scale = nullptr, *v_scale = nullptr;  // [kChunkTokens]
  float* k_tile = nullptr;                       // [head_dim_k, tile_tokens], or what DecodeTile makes
  float* v_tile = nullptr;                       // [tile_tokens, stride], likewise
  float* scores = nullptr;                       // [rows, kRowStride]; then weights, or their words (FactorRows)
  float* reference = nullptr;                    // [rows, kMaxBlocks] largest score of a block
  float* factor = nullptr;                       // [rows, kMaxBlocks] of a block's weighted values
  int32_t* w_start = nullptr;                    // [rows, kMaxBlocks], see FactorRows
  float* row = nullptr;                          // [4 * max head_dim]
  float* page_mean = nullptr;                    // [2 * max head_dim], mean=page
  float* packed_fold = nullptr;                  // StateFold memory
  float* raw_fold = nullptr;
  int packed_slots = 0, raw_slots = 0;  // states of the folds

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
