// SPDX-License-Identifier: Apache-2.0
// Profiles for tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "tersekv/profile.h"

namespace tersekv::testing {

inline std::vector<float> Ramp(size_t n, float first, float step) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = first + step * static_cast<float>(i);
  return values;
}

// Two layers of different shapes, every field filled.
inline Profile SmallProfile() {
  Profile profile;
  profile.tersekv_version = "0.1.0";
  profile.model_name = "tiny \"quoted\" \xc3\xa9";
  profile.model_fingerprint = "00c0ffee";
  profile.channel_order = ChannelOrder::kInterleaved;
  profile.tokens = 4096;
  profile.sink_tokens = 1;
  for (const LayerShape& shape : {LayerShape{4, 2, 8, 6}, LayerShape{2, 1, 4, 4}}) {
    ProfileLayer& layer = profile.layers.emplace_back();
    const size_t k = static_cast<size_t>(shape.kv_heads * shape.head_dim_k);
    const size_t v = static_cast<size_t>(shape.kv_heads * shape.head_dim_v);
    layer.shape = shape;
    layer.k = {Ramp(k, -1.5F, .25F), Ramp(k, .5F, .125F), Ramp(k, 0, .1F)};
    layer.v = {Ramp(v, 3, -.3F), Ramp(v, 1, .01F), Ramp(v, 1e-6F, .7F)};
    layer.query_square = Ramp(k, 2, .5F);
    layer.sink_ratio = {9.5F, 1.1F, .9F};
    layer.attention_scale = .3535534F;
    layer.attention_spread = .7F;
    layer.attention_peak = .3F;
  }
  profile.sensitivities = {{0, Kv::kK, {{2, .25}, {4, .01}}}, {1, Kv::kV, {{3, 1.0 / 3}}}};
  profile.byte_budget_table = {{2.5, {3, 2}, {2, 3}, 42, .1, std::nullopt}, {4, {4, 5}, {4, 3}, 60, 1e-3, 1.25e-3}};
  profile.metadata = {{"text", "a/b.txt"}, {"checksum", "\"checksum\":\"0000000000000000\""}};
  return profile;
}

}  // namespace tersekv::testing
