// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/context_params.h"

#include <algorithm>

namespace tersekv::llama {

llama_context_params ContextParams(const SessionOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ubatch = static_cast<uint32_t>(options.ubatch);
  // The engine reserves an output row for every sequence and aborts when they are more than n_batch.
  params.n_batch = static_cast<uint32_t>(std::max(options.ubatch, options.max_sequences));
  params.n_seq_max = static_cast<uint32_t>(options.max_sequences);
  params.n_threads = params.n_threads_batch = options.threads;
  params.kv_unified = true;
  params.offload_kqv = params.op_offload = false;
  params.no_perf = true;
  return params;
}

}  // namespace tersekv::llama
