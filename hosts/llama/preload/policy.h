// SPDX-License-Identifier: Apache-2.0
// Which contexts get a packed history, and which are left to llama.cpp or refused.
#pragma once

#include <string>

#include "hosts/llama/model.h"
#include "hosts/llama/preload/settings.h"

namespace tersekv::llama::preload {

struct Decision {
  enum Kind {
    kAdopt,   // ours
    kPass,    // llama.cpp's own cache
    kRefuse,  // no context
  };
  Kind kind = kAdopt;
  std::string reason;
};

// By what the program asks for. other_is_packed: params.ctx_other has a packed history.
Decision DecideByParams(const llama_model* model, const llama_context_params& params, bool other_is_packed);
// By what the model is.
Decision DecideByModel(const Model& model);

// kPass becomes kRefuse under TERSEKV_STRICT; the line that says so is printed.
Decision Settle(Decision decision, const Settings& settings);

}  // namespace tersekv::llama::preload
