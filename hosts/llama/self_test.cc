// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hosts/llama/context_params.h"
#include "hosts/llama/logging.h"
#include "src/base/check.h"

namespace tersekv::llama {
namespace {

// Quantised weights round activations too, so small differences grow; a wrong mechanism is off by about 1.
constexpr double kLargestDifference = 0.05;
constexpr llama_token kTrial[] = {1, 2};

// Logits of the second of two tokens.
Result<std::vector<float>> TrialLogits(const Model& model, llama_context* context) {
  llama_token tokens[] = {std::min(kTrial[0], model.info.vocab - 1), std::min(kTrial[1], model.info.vocab - 1)};
  if (const int rc = llama_decode(context, llama_batch_get_one(tokens, 2)); rc != 0) {
    return Internal(fmt::format("llama_decode failed with code {}: {}", rc, TakeEngineErrors()));
  }
  const float* logits = llama_get_logits_ith(context, -1);
  return std::vector<float>(logits, logits + model.info.vocab);
}

SessionOptions TrialOptions(const SessionOptions& options) {
  SessionOptions trial = options;
  trial.ubatch = 32;
  trial.max_sequences = 1;
  trial.ctx = 2;
  return trial;
}

Result<std::vector<float>> StockLogits(const Model& model, const SessionOptions& options) {
  llama_context_params params = ContextParams(TrialOptions(options));
  params.n_ctx = 256;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const ContextPtr context(llama_init_from_model(model.model, params));
  if (!context) return Internal(fmt::format("llama.cpp makes no stock context: {}", TakeEngineErrors()));
  return TrialLogits(model, context.get());
}

Result<std::vector<float>> HookedLogits(const Model& model, const SessionOptions& options, HostMode mode) {
  CacheConfig config;
  config.spec = DefaultsOf(Family::kF32, 32, Family::kF32, 32, 0);
  config.layers = model.info.layers;
  config.max_workers = options.threads;
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
  if (!cache) return cache.error();
  Hook hook(cache->get(), model.layers, mode, options.threads);
  const ContextPtr context(NewStagingContext(model, TrialOptions(options), &hook));
  if (!context) return Internal(fmt::format("llama.cpp makes no context: {}", TakeEngineErrors()));
  const StepToken tokens[] = {{0, 0}, {0, 1}};
  hook.Begin(tokens);
  Result<std::vector<float>> logits = TrialLogits(model, context.get());
  TERSEKV_RETURN_IF_ERROR(hook.End(logits.has_value()));
  return logits;
}

Status TryMode(const Model& model, const SessionOptions& options, HostMode mode, const std::vector<float>& stock) {
  Result<std::vector<float>> ours = HookedLogits(model, options, mode);
  if (!ours) return ours.error();
  double difference = 0, power = 0;
  for (size_t i = 0; i < stock.size(); ++i) {
    difference += std::pow(static_cast<double>((*ours)[i]) - static_cast<double>(stock[i]), 2);
    power += std::pow(static_cast<double>(stock[i]), 2);
  }
  const double relative = std::sqrt(difference / power);
  if (!(relative <= kLargestDifference)) {
    return Internal(fmt::format("host mode {}: two tokens differ from a stock context by {:.3g} (limit {})",
                                HostModeName(mode), relative, kLargestDifference));
  }
  return {};
}

}  // namespace

llama_context* NewStagingContext(const Model& model, const SessionOptions& options, Hook* hook) {
  llama_context_params params = ContextParams(options);
  int64_t cells = options.ubatch;
  if (model.info.recurrent) cells += options.max_sequences;  // one of each sequence stays
  if (options.ctx > model.long_rope_from && model.long_rope_from > 0) cells = std::max(cells, model.long_rope_from + 1);
  params.n_ctx = static_cast<uint32_t>(std::max<int64_t>(256, (cells + 255) / 256 * 256));
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.cb_eval = Hook::OnNode;
  params.cb_eval_user_data = hook;
  return llama_init_from_model(model.model, params);
}

Result<HostMode> ChooseMode(const Model& model, const SessionOptions& options) {
  if (!options.self_test && options.mode != HostMode::kAuto) return options.mode;
  Result<std::vector<float>> stock = StockLogits(model, options);
  if (!stock) return stock.error();
  Status last;
  for (const HostMode mode : {HostMode::kCustom, HostMode::kOverwrite}) {
    if (options.mode != HostMode::kAuto && options.mode != mode) continue;
    last = TryMode(model, options, mode, *stock);
    if (last.ok()) return mode;
  }
  return Internal(fmt::format("no host mode works with llama.cpp {} here: {}", LlamaVersion(), last.message()));
}

}  // namespace tersekv::llama
