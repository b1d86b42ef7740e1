// SPDX-License-Identifier: Apache-2.0
// From a session's options to the configuration of its cache.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tersekv/llama.h"

namespace tersekv::llama {

// Fills spec, layer_bits and statistics of `config`; `kv` is not stock-*. config is touched only on success.
Status ConfigureCache(const ModelInfo& model, const std::string& kv, const std::shared_ptr<const Profile>& profile,
                      const std::vector<LayerBits>& layer_bits, CacheConfig* config);

}  // namespace tersekv::llama
