// SPDX-License-Identifier: Apache-2.0
// Does the loaded libllama lay out its parameters as the header that this object was built with says?
#pragma once

#include "llama.h"
#include "tersekv/status.h"

namespace tersekv::llama {

// Parameters that are passed by value, with room for fields that a newer library has behind ours: what a program gives
// is handed on whole.
struct WideContextParams {
  llama_context_params params;
  char rest[512];
};
using InitFromWide = llama_context* (*)(llama_model*, WideContextParams);
struct WideModelParams {
  llama_model_params params;
  char rest[512];
};

// kUnsupported names the difference. Asked of the library once.
const Status& CheckAbi();

}  // namespace tersekv::llama
