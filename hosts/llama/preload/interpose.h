// SPDX-License-Identifier: Apache-2.0
// For the files that define functions of llama.h in front of libllama's. Nothing here may throw, and whatever is not
// ours goes on to the real function with the arguments as they came.
#pragma once

#include "hosts/llama/preload/engine.h"
#include "hosts/llama/preload/registry.h"

#define TERSEKV_INTERPOSED extern "C" __attribute__((visibility("default")))

namespace tersekv::llama::preload {

inline Context* Ours(const llama_context* context) { return Registry::Get().Find(context); }
inline Context* Ours(llama_memory_t memory) { return Registry::Get().FindByMemory(memory); }

}  // namespace tersekv::llama::preload
