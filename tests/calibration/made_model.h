// SPDX-License-Identifier: Apache-2.0
// Made-up keys, values and queries of a model, given to a sink as a host would.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tersekv/calibration.h"
#include "tests/reference/rows.h"

namespace tersekv::testing {

struct MadeRows {
  std::vector<LayerShape> layers;
  int tokens = 0;
  // By layer: [tokens, kv_heads * d], [tokens, kv_heads * d], [tokens, heads * d].
  std::vector<std::vector<float>> k, v, q;
};

// Channels of different spread; key channel 1 carries a constant of `bias`; position 0 has a key `sink` times as large.
inline MadeRows MakeRows(const std::vector<LayerShape>& layers, int tokens, uint64_t seed, float bias = 5,
                         float sink = 20) {
  MadeRows made{layers, tokens, {}, {}, {}};
  reference::Random random(seed);
  const auto rows = [&](int heads, int d, auto f) {
    std::vector<float> out(static_cast<size_t>(tokens * heads * d));
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t c = i % static_cast<size_t>(d);
      out[i] = f(static_cast<float>(random.Gaussian()), c, i / static_cast<size_t>(heads * d));
    }
    return out;
  };
  for (const LayerShape& s : layers) {
    made.k.push_back(rows(s.kv_heads, s.head_dim_k, [&](float x, size_t c, size_t t) {
      const float value = x * std::ldexp(1.F, static_cast<int>(c % 4) - 2) + (c == 1 ? bias : 0);
      return t == 0 ? sink * value : value;
    }));
    made.v.push_back(
        rows(s.kv_heads, s.head_dim_v, [](float x, size_t c, size_t) { return x * (c % 3 == 0 ? 4.F : 1.F) + .5F; }));
    made.q.push_back(rows(s.heads, s.head_dim_k,
                          [](float x, size_t c, size_t) { return x * std::ldexp(1.F, 1 - static_cast<int>(c % 5)); }));
  }
  return made;
}

// Tokens [0, made.tokens) as one context, in steps of `step`, by `workers` in turn.
inline Status Feed(const MadeRows& made, int step, int workers, StatisticsSink* sink) {
  for (int begin = 0; begin < made.tokens; begin += step) {
    const int end = std::min(made.tokens, begin + step);
    std::vector<StepToken> tokens;
    for (int pos = begin; pos < end; ++pos) tokens.push_back({0, pos});
    if (const Status s = sink->BeginStep(tokens); !s.ok()) return s;
    for (size_t l = 0; l < made.layers.size(); ++l) {
      const LayerShape& shape = made.layers[l];
      const auto rows = [&](const std::vector<float>& all, int width) {
        return all.data() + static_cast<size_t>(begin) * static_cast<size_t>(width);
      };
      const int kw = shape.kv_heads * shape.head_dim_k, vw = shape.kv_heads * shape.head_dim_v;
      const int qw = shape.heads * shape.head_dim_k;
      AttentionParams params;
      params.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim_k));
      Queries queries;
      queries.data = rows(made.q[l], qw);
      queries.token_stride = static_cast<ptrdiff_t>(sizeof(float)) * qw;
      queries.head_stride = static_cast<ptrdiff_t>(sizeof(float)) * shape.head_dim_k;
      queries.heads = shape.heads;
      const int layer = static_cast<int>(l);
      for (int w = workers - 1; w >= 0; --w) {
        sink->WriteRows(layer, Kv::kK, rows(made.k[l], kw), static_cast<ptrdiff_t>(sizeof(float)) * kw, w, workers);
        sink->WriteRows(layer, Kv::kV, rows(made.v[l], vw), static_cast<ptrdiff_t>(sizeof(float)) * vw, w, workers);
      }
      for (int w = 0; w < workers; ++w) sink->Attend(layer, params, queries, w, workers);
    }
  }
  return {};
}

inline Profile StatisticsOf(const MadeRows& made, int step = 64, int workers = 1) {
  Profile profile;
  Result<std::unique_ptr<StatisticsCollector>> collector = StatisticsCollector::Create(made.layers);
  if (collector && Feed(made, step, workers, collector->get()).ok()) {
    (void)!(*collector)->MakeStatistics({}, &profile).ok();
  }
  return profile;
}

}  // namespace tersekv::testing
