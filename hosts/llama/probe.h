// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "llama.h"
#include "tersekv/cache.h"

namespace tersekv::llama {

// Runs two tokens through a small stock context and reads the shape of each layer's attention off the graph. layers: by
// KV-layer ordinal; ordinals: by the model's layer number. kUnsupported says which layer is of a kind that cannot be
// served.
Status ProbeLayers(llama_model* model, std::vector<LayerShape>* layers, std::vector<int>* ordinals);

}  // namespace tersekv::llama
