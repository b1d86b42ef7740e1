// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hosts/llama/layers.h"
#include "llama.h"
#include "tersekv/cache.h"

namespace tersekv::llama {

// Runs a few tokens through a small stock context and reads off its graphs what each layer's attention looks like; of
// models with a sliding window also which layers have it, from their masks. shapes: by KV layer. kUnsupported says
// which layer is of a kind that cannot be served.
Status ProbeLayers(llama_model* model, std::vector<LayerShape>* shapes, HostLayers* layers);

}  // namespace tersekv::llama
