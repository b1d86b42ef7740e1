// SPDX-License-Identifier: Apache-2.0
// Models and contexts: which of them are ours, and what ours say of their sizes.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "hosts/llama/preload/abi.h"
#include "hosts/llama/preload/interpose.h"
#include "hosts/llama/preload/policy.h"
#include "hosts/llama/preload/reach.h"

namespace tersekv::llama::preload {
namespace {

using LoadWide = llama_model* (*)(const char*, WideModelParams);

Decision Decide(llama_model* model, const WideContextParams& params, std::shared_ptr<const Model>* described) {
  if (const Status& abi = CheckAbi(); !abi.ok()) return {Decision::kPass, abi.message()};
  const bool other = params.params.ctx_other != nullptr && Ours(params.params.ctx_other) != nullptr;
  if (Decision d = DecideByParams(model, params.params, other); d.kind != Decision::kAdopt) return d;
  auto known = Registry::Get().Describe(model);
  if (!known) return {Decision::kPass, known.error().message()};
  *described = *known;
  return DecideByModel(**described);
}

struct Made {
  llama_context* context = nullptr;
  bool pass = false;  // it is the real function's turn
};

// Once a process; whether there are some.
bool SayUnknownVariables() {
  static const bool some = [] {
    const std::vector<std::string> unknown = UnknownVariables(environ);
    for (const std::string& name : unknown) {
      Say(0, "{} is no variable of this version, nothing reads it: docs/serving.md and `tersekv doctor` list them",
          name);
    }
    return !unknown.empty();
  }();
  return some;
}

Made Make(llama_model* model, const WideContextParams& params) {
  ContextAsked();
  const Result<Settings>& settings = TheSettings();
  if (!settings) {
    Say(0, "refused: {}", settings.error().message());
    return {};
  }
  if (settings->active() && SayUnknownVariables() && settings->strict) return {};
  if (!settings->active() || model == nullptr || Registry::Get().HowLoaded(model).measuring) return {nullptr, true};
  std::shared_ptr<const Model> described;
  Decision decision = Decide(model, params, &described);
  if (decision.kind == Decision::kAdopt) {
    if (const Status port = StatusBoard::Get().Open(*settings); !port.ok()) {
      Say(0, "no status port: {}", port.message());
      if (settings->strict) return {};
    }
    Result<std::unique_ptr<Context>> context = Context::Create(described, params, *settings);
    if (context) {
      llama_context* handle = (*context)->handle();
      Registry::Get().Add(std::move(*context));
      ++StatusBoard::Get().packed;
      return {handle, false};
    }
    // A variable that does not fit is refused; but what fits a model need not fit its draft.
    const StatusCode code = context.error().code();
    const bool wrong = code == StatusCode::kInvalidArgument && params.params.ctx_other == nullptr;
    decision = {code == StatusCode::kOutOfBudget || wrong ? Decision::kRefuse : Decision::kPass,
                context.error().message()};
  }
  decision = Settle(std::move(decision), *settings);
  const bool pass = decision.kind == Decision::kPass;
  ++(pass ? StatusBoard::Get().passed : StatusBoard::Get().refused);
  return {nullptr, pass};
}

llama_context* NewContext(const char* function, llama_model* model, const WideContextParams& params) {
  const auto real = Recast<InitFromWide>(&TERSEKV_REAL(llama_init_from_model));
  const Made made = Guard(function, Made(), [&] { return Make(model, params); });
  return made.pass ? real(model, params) : made.context;
}

llama_model* LoadModelFile(const char* function, const char* path, const WideModelParams& params) {
  llama_model* model = Recast<LoadWide>(&TERSEKV_REAL(llama_model_load_from_file))(path, params);
  if (model == nullptr) return model;
  const bool known = Guard(function, false, [&] {
    const Result<Settings>& settings = TheSettings();
    if (settings && settings->active() && CheckAbi().ok()) {
      Registry::Get().AddModel(model, {path, params.params.no_alloc});
    }
    return true;
  });
  if (known) return model;
  TERSEKV_REAL(llama_model_free)(model);
  return nullptr;
}

}  // namespace

// Under names of our own in C++, because the parameters are wider than llama.h says.
TERSEKV_INTERPOSED llama_context* TersekvInit(llama_model* model,
                                              WideContextParams params) __asm__("llama_init_from_model");
TERSEKV_INTERPOSED llama_context* TersekvNewContext(llama_model* model,
                                                    WideContextParams params) __asm__("llama_new_context_with_model");
TERSEKV_INTERPOSED llama_model* TersekvLoad(const char* path,
                                            WideModelParams params) __asm__("llama_model_load_from_file");
TERSEKV_INTERPOSED llama_model* TersekvLoadOld(const char* path,
                                               WideModelParams params) __asm__("llama_load_model_from_file");

llama_context* TersekvInit(llama_model* model, WideContextParams params) {
  return NewContext("llama_init_from_model", model, params);
}
llama_context* TersekvNewContext(llama_model* model, WideContextParams params) {
  return NewContext("llama_new_context_with_model", model, params);
}
llama_model* TersekvLoad(const char* path, WideModelParams params) {
  return LoadModelFile("llama_model_load_from_file", path, params);
}
llama_model* TersekvLoadOld(const char* path, WideModelParams params) {
  return LoadModelFile("llama_load_model_from_file", path, params);
}

TERSEKV_INTERPOSED void llama_model_free(llama_model* model) {
  Guard(__func__, false, [&] { return Registry::Get().RemoveModel(model), true; });
  TERSEKV_REAL(llama_model_free)(model);
}

TERSEKV_INTERPOSED void llama_free_model(llama_model* model) { llama_model_free(model); }

TERSEKV_INTERPOSED void llama_free(llama_context* context) {
  const bool freed = Guard(__func__, true, [&] {
    const std::unique_ptr<Context> ours = Registry::Get().Take(context);
    if (ours == nullptr) return false;
    if (ours->broken()) return true;
    const CacheUsage usage = ours->history().cache()->Usage();
    Say(2, "context freed with {} tokens in {} bytes", usage.tokens, usage.bytes_used);
    return true;
  });
  if (!freed) TERSEKV_REAL(llama_free)(context);
}

TERSEKV_INTERPOSED uint32_t llama_n_ctx(const llama_context* context) {
  const Context* ours = Ours(context);
  return ours != nullptr ? ours->sizes().ctx : TERSEKV_REAL(llama_n_ctx)(context);
}

TERSEKV_INTERPOSED uint32_t llama_n_ctx_seq(const llama_context* context) {
  const Context* ours = Ours(context);
  return ours != nullptr ? ours->sizes().ctx_seq : TERSEKV_REAL(llama_n_ctx_seq)(context);
}

TERSEKV_INTERPOSED uint32_t llama_n_batch(const llama_context* context) {
  const Context* ours = Ours(context);
  return ours != nullptr ? ours->sizes().batch : TERSEKV_REAL(llama_n_batch)(context);
}

TERSEKV_INTERPOSED void llama_set_causal_attn(llama_context* context, bool causal) {
  if (Context* ours = Ours(context)) ours->SetCausal(causal);
  TERSEKV_REAL(llama_set_causal_attn)(context, causal);
}

}  // namespace tersekv::llama::preload
