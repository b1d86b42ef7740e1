// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/step_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/reference/rows.h"

namespace tersekv::reference {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kRowGap = 7, kHeadGap = 3;  // floats after a row, after a head

uint64_t Mixed(uint64_t a, uint64_t b) { return Random(a * 0x9E3779B97F4A7C15u ^ b).Next(); }

std::vector<float> MakeRow(uint64_t seed, int layer, int kind, uint64_t content, int heads, int d) {
  Random channels(Mixed(Mixed(seed, 17), static_cast<uint64_t>(layer * 4 + kind)));
  Random values(Mixed(Mixed(seed, content), static_cast<uint64_t>(layer * 4 + kind)));
  std::vector<float> row(static_cast<size_t>(heads * d));
  for (float& v : row) {
    const double mean = channels.Below(16) == 0 ? (channels.Below(2) == 0 ? 5.0 : -5.0) : channels.Uniform() - 0.5;
    const double width = std::exp2(2.0 * channels.Uniform() - 1.0);
    v = static_cast<float>(kind == 2 ? 1.5 * values.Gaussian() : mean + width * values.Gaussian());
  }
  return row;
}

// Rows laid out with gaps of NaN: what reads beyond a row shows.
struct Padded {
  size_t stride = 0;  // floats
  std::vector<float> data;
  template <class F>
  Padded(size_t rows, size_t heads, size_t d, size_t head_gap, F&& row_of)
      : stride(heads * (d + head_gap) + kRowGap), data(rows * stride, kPoison) {
    for (size_t t = 0; t < rows; ++t) {
      const std::vector<float> row = row_of(t);
      for (size_t i = 0; i < row.size(); ++i) data[t * stride + i / d * (d + head_gap) + i % d] = row[i];
    }
  }
  ptrdiff_t bytes() const { return static_cast<ptrdiff_t>(stride * sizeof(float)); }
};

Padded PaddedSide(const Model& model, int layer, Kv side, const std::vector<Token>& tokens) {
  const LayerShape& shape = model.config.layers[static_cast<size_t>(layer)];
  const int d = side == Kv::kK ? shape.head_dim_k : shape.head_dim_v;
  return {tokens.size(), static_cast<size_t>(shape.kv_heads), static_cast<size_t>(d), 0, [&](size_t t) {
            return side == Kv::kK ? model.K(layer, tokens[t].content) : model.V(layer, tokens[t].content);
          }};
}

template <class F>
void OnThreads(int workers, F&& work) {
  std::vector<std::thread> threads;
  for (int w = 1; w < workers; ++w) threads.emplace_back([&work, w] { work(w); });
  work(0);
  for (std::thread& t : threads) t.join();
}

LayerResult RunLayer(KvCache* cache, const Model& model, int layer, const std::vector<Token>& tokens, int workers) {
  const LayerShape& shape = model.config.layers[static_cast<size_t>(layer)];
  const size_t heads = static_cast<size_t>(shape.heads), dv = static_cast<size_t>(shape.head_dim_v);
  const size_t dk = static_cast<size_t>(shape.head_dim_k), n = tokens.size();
  const Padded k = PaddedSide(model, layer, Kv::kK, tokens), v = PaddedSide(model, layer, Kv::kV, tokens);
  const Padded q(n, heads, dk, kHeadGap, [&](size_t t) { return model.Q(layer, tokens[t].content); });
  Padded out(n, heads, dv, kHeadGap, [](size_t) { return std::vector<float>(); });
  LayerResult result;
  result.lse.assign(n * heads, kPoison);
  Queries queries;
  queries.data = q.data.data();
  queries.token_stride = q.bytes();
  queries.head_stride = static_cast<ptrdiff_t>((dk + kHeadGap) * sizeof(float));
  queries.heads = shape.heads;
  queries.out = out.data.data();
  queries.out_token_stride = out.bytes();
  queries.out_head_stride = static_cast<ptrdiff_t>((dv + kHeadGap) * sizeof(float));
  queries.lse = result.lse.data();
  std::barrier written(workers);
  OnThreads(workers, [&](int w) {
    cache->WriteRows(layer, Kv::kK, k.data.data(), k.bytes(), w, workers);
    cache->WriteRows(layer, Kv::kV, v.data.data(), v.bytes(), w, workers);
    written.arrive_and_wait();
    cache->Attend(layer, model.Params(layer), queries, w, workers);
  });
  size_t gaps = 0;
  for (size_t t = 0; t < n; ++t) {
    for (size_t i = 0; i < out.stride; ++i) {
      const float o = out.data[t * out.stride + i];
      const bool value = i < heads * (dv + kHeadGap) && i % (dv + kHeadGap) < dv;
      if (value) {
        result.out.push_back(o);
      } else {
        gaps += std::isnan(o) ? 0u : 1u;
      }
    }
  }
  EXPECT_EQ(gaps, 0u) << "Attend wrote between the outputs";
  return result;
}

}  // namespace

AttentionParams Model::Params(int layer) const {
  AttentionParams p = params;
  if (!config.windows.empty()) p.window = config.windows[static_cast<size_t>(layer)];
  if (!sinks.empty()) p.sinks = sinks.data();
  return p;
}
std::vector<float> Model::K(int layer, uint64_t content) const {
  const LayerShape& shape = config.layers[static_cast<size_t>(layer)];
  return MakeRow(seed, layer, 0, content, shape.kv_heads, shape.head_dim_k);
}
std::vector<float> Model::V(int layer, uint64_t content) const {
  const LayerShape& shape = config.layers[static_cast<size_t>(layer)];
  return MakeRow(seed, layer, 1, content, shape.kv_heads, shape.head_dim_v);
}
std::vector<float> Model::Q(int layer, uint64_t content) const {
  const LayerShape& shape = config.layers[static_cast<size_t>(layer)];
  return MakeRow(seed, layer, 2, content, shape.heads, shape.head_dim_k);
}

Model MakeModel(const std::string& spec, std::vector<LayerShape> layers, int max_workers) {
  Model model;
  model.config.spec = ParseSpec(spec).value();
  model.config.layers = std::move(layers);
  model.config.max_workers = max_workers;
  model.config.arithmetic = Arithmetic::kExact;  // what the tests of other rooms compare with
  model.params.scale = 1.0f / std::sqrt(static_cast<float>(model.config.layers[0].head_dim_k));
  return model;
}

std::unique_ptr<KvCache> MakeCache(const Model& model) {
  auto cache = KvCache::Create(model.config);
  if (!cache) {
    ADD_FAILURE() << cache.error().ToString();
    std::abort();
  }
  return std::move(*cache);
}

std::vector<Token> TokenRun(int32_t seq, int32_t first, int n, uint64_t stream) {
  std::vector<Token> tokens;
  for (int32_t i = first; i < first + n; ++i) tokens.push_back({seq, i, (stream << 32) + static_cast<uint64_t>(i)});
  return tokens;
}

std::vector<StepToken> StepTokens(const std::vector<Token>& tokens) {
  std::vector<StepToken> step;
  for (const Token& t : tokens) step.push_back({t.seq, t.pos});
  return step;
}

void WriteAll(KvCache* cache, const Model& model, const std::vector<Token>& tokens) {
  for (int l = 0; l < static_cast<int>(model.config.layers.size()); ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const Padded rows = PaddedSide(model, l, side, tokens);
      cache->WriteRows(l, side, rows.data.data(), rows.bytes(), 0, 1);
    }
  }
}

StepResult RunStep(KvCache* cache, const Model& model, const std::vector<Token>& tokens, int workers) {
  StepResult result;
  const Status begun = cache->BeginStep(StepTokens(tokens));
  EXPECT_TRUE(begun.ok()) << begun.ToString();
  if (!begun.ok()) return result;
  for (int l = 0; l < static_cast<int>(model.config.layers.size()); ++l) {
    result.push_back(RunLayer(cache, model, l, tokens, workers));
    const auto finite = [](float v) { return std::isfinite(v); };
    EXPECT_TRUE(std::all_of(result.back().out.begin(), result.back().out.end(), finite)) << "layer " << l;
    EXPECT_TRUE(std::all_of(result.back().lse.begin(), result.back().lse.end(), finite)) << "layer " << l;
  }
  const Status ended = cache->EndStep();
  EXPECT_TRUE(ended.ok()) << ended.ToString();
  return result;
}

StepResult Slice(const Model& model, const StepResult& result, size_t begin, size_t n) {
  StepResult part;
  for (size_t l = 0; l < result.size(); ++l) {
    const LayerShape& shape = model.config.layers[l];
    const auto cut = [&](const std::vector<float>& from, int width) {
      const auto at = from.begin() + static_cast<ptrdiff_t>(begin) * width;
      return std::vector<float>(at, at + static_cast<ptrdiff_t>(n) * width);
    };
    part.push_back({cut(result[l].out, shape.heads * shape.head_dim_v), cut(result[l].lse, shape.heads)});
  }
  return part;
}

void Extend(StepResult* all, const StepResult& more) {
  all->resize(more.size());
  for (size_t l = 0; l < more.size(); ++l) {
    (*all)[l].out.insert((*all)[l].out.end(), more[l].out.begin(), more[l].out.end());
    (*all)[l].lse.insert((*all)[l].lse.end(), more[l].lse.begin(), more[l].lse.end());
  }
}

StepResult RunInSteps(KvCache* cache, const Model& model, const std::vector<Token>& tokens,
                      const std::vector<size_t>& sizes, int workers) {
  StepResult all;
  for (size_t at = 0, i = 0; at < tokens.size(); ++i) {
    const size_t n = std::min(sizes[std::min(i, sizes.size() - 1)], tokens.size() - at);
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(at);
    Extend(&all, RunStep(cache, model, {first, first + static_cast<ptrdiff_t>(n)}, workers));
    at += n;
  }
  return all;
}

}  // namespace tersekv::reference
