// SPDX-License-Identifier: Apache-2.0
// Does the host work with the libllama that is here? Two tokens against a stock context say so.
#pragma once

#include "hosts/llama/hook.h"
#include "hosts/llama/model.h"

namespace tersekv::llama {

// A context whose own cache is only a staging area for one forward pass; hook watches its graph. Null on failure.
llama_context* NewStagingContext(llama_model* model, const SessionOptions& options, Hook* hook);

// The mode asked for, or for kAuto the best that passes; kInternal when none does.
Result<HostMode> ChooseMode(const Model& model, const SessionOptions& options);

}  // namespace tersekv::llama
