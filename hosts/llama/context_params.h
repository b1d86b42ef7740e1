// SPDX-License-Identifier: Apache-2.0
// Contexts of the engine that this host makes itself.
#pragma once

#include <memory>

#include "llama.h"
#include "tersekv/llama.h"

namespace tersekv::llama {

struct ContextDelete {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ContextPtr = std::unique_ptr<llama_context, ContextDelete>;

// Parameters that contexts on our cache and on the engine's own share.
llama_context_params ContextParams(const SessionOptions& options);

}  // namespace tersekv::llama
