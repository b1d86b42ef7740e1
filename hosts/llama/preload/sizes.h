// SPDX-License-Identifier: Apache-2.0
// How many tokens and bytes a context has.
#pragma once

#include "hosts/llama/preload/settings.h"
#include "llama.h"
#include "tersekv/cache.h"

namespace tersekv::llama::preload {

struct Sizes {
  uint32_t ctx = 0;      // as llama_n_ctx says
  uint32_t ctx_seq = 0;  // most tokens of one sequence
  uint32_t batch = 0;    // as llama_n_batch says
  uint32_t staging = 0;  // cells of llama.cpp's own cache
  int sequences = 1;
  bool shared = true;        // sequences share ctx tokens (kv_unified)
  size_t budget = 0;         // bytes of the packed history
  size_t needed = 0;         // of those, what `ctx` tokens in all sequences take
  size_t f16 = 0;            // what llama.cpp would take for the tokens that the program asked for
  uint32_t requested = 0;    // those tokens
  int64_t total_tokens = 0;  // what the budget holds, over all sequences
};

// params: as the program gave them. config.byte_budget is not read. kOutOfBudget: the bytes do not hold the context.
Result<Sizes> PlanSizes(const llama_context_params& params, int ctx_train, const CacheConfig& config,
                        const Settings& settings);

}  // namespace tersekv::llama::preload
