// SPDX-License-Identifier: Apache-2.0
// What the host must know of a model's attention layers beside their shapes.
#pragma once

#include <vector>

namespace tersekv::llama {

struct HostLayers {
  std::vector<int> ordinals;  // by the model's layer number: its KV layer, or -1 (recurrent, or reads another's KV)
  std::vector<int> windows;   // by KV layer: tokens that a query sees; 0 = all
  std::vector<bool> latent;   // by KV layer: V is the first head_dim_v channels of K (MLA)
};

}  // namespace tersekv::llama
