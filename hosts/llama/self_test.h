// SPDX-License-Identifier: Apache-2.0
// Does the host work with the libllama that is here? Two tokens against a stock context say so.
#pragma once

#include "hosts/llama/hook.h"
#include "hosts/llama/model.h"

namespace tersekv::llama {

// A context whose own cache is only a staging area for one forward pass; hook watches its graph. Null on failure.
// A LongRoPE model whose options.ctx is above its long_rope_from gets one that is too, because llama.cpp picks the
// factors by this size.
llama_context* NewStagingContext(const Model& model, const SessionOptions& options, Hook* hook);

// The mode asked for, or for kAuto the best that passes; kInternal when none does.
Result<HostMode> ChooseMode(const Model& model, const SessionOptions& options);

}  // namespace tersekv::llama
