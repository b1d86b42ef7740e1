// SPDX-License-Identifier: Apache-2.0
// Drives a KvCache with made-up rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/cache.h"

namespace tersekv::reference {

// A model whose rows are a function of (seed, layer, content of the token).
struct Model {
  CacheConfig config;
  AttentionParams params;
  std::vector<float> sinks;  // of params, when not empty
  uint64_t seed = 1;

  AttentionParams Params(int layer = 0) const;  // with the layer's window, when the config has windows
  // K: [kv_heads * head_dim_k] with means and widths that differ by channel; V; Q: [heads * head_dim_k].
  std::vector<float> K(int layer, uint64_t content) const;
  std::vector<float> V(int layer, uint64_t content) const;
  std::vector<float> Q(int layer, uint64_t content) const;
};

Model MakeModel(const std::string& spec, std::vector<LayerShape> layers, int max_workers = 1);
std::unique_ptr<KvCache> MakeCache(const Model& model);

struct Token {
  int32_t seq = 0, pos = 0;
  uint64_t content = 0;
};
// n tokens of `seq` at positions and contents first, first + 1, ...; contents of different streams differ.
std::vector<Token> TokenRun(int32_t seq, int32_t first, int n, uint64_t stream = 0);
std::vector<StepToken> StepTokens(const std::vector<Token>& tokens);

struct LayerResult {
  std::vector<float> out;  // [tokens, heads, head_dim_v]
  std::vector<float> lse;  // [tokens, heads]
  bool operator==(const LayerResult&) const = default;
};
using StepResult = std::vector<LayerResult>;  // by layer

// WriteRows of every layer of the running step, by one worker; rows and their gaps are laid out with odd strides.
void WriteAll(KvCache* cache, const Model& model, const std::vector<Token>& tokens);
// A whole step on `workers` threads. Outputs are poisoned first; what must not be written is checked to be untouched.
StepResult RunStep(KvCache* cache, const Model& model, const std::vector<Token>& tokens, int workers = 1);
// The part of a result that belongs to tokens [begin, begin + n).
StepResult Slice(const Model& model, const StepResult& result, size_t begin, size_t n);
void Extend(StepResult* all, const StepResult& more);
// Tokens of a sequence cut into steps of these sizes (the last one repeats).
StepResult RunInSteps(KvCache* cache, const Model& model, const std::vector<Token>& tokens,
                      const std::vector<size_t>& sizes, int workers = 1);

}  // namespace tersekv::reference
