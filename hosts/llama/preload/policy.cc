// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/policy.h"

#include <fmt/format.h>

#include "hosts/llama/preload/say.h"

namespace tersekv::llama::preload {
namespace {

bool ReadsOtherCache(const std::string& architecture) {
  return architecture == "gemma4-assistant" || architecture == "eagle3" || architecture == "dflash";
}

std::string Gpu() {
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    const auto type = ggml_backend_dev_type(ggml_backend_dev_get(i));
    if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
      return "this llama.cpp can use a GPU here and packed attention runs on the CPU only in this version: hide the "
             "device (CUDA_VISIBLE_DEVICES= or a CPU build)";
    }
  }
  return "";
}

}  // namespace

Decision DecideByParams(const llama_model* model, const llama_context_params& params, bool other_is_packed) {
  const std::string architecture = MetaValue(model, "general.architecture");
  if (other_is_packed && (params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || ReadsOtherCache(architecture))) {
    return {Decision::kRefuse,
            fmt::format("a draft ({}) that reads the cache of its target, which is packed: use another kind of draft",
                        architecture)};
  }
  const auto pass = [](const char* reason) { return Decision{Decision::kPass, reason}; };
  if (params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT) return pass("a context of a special type (MTP)");
  if (params.embeddings) return pass("a context for embeddings");
  if (params.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && params.pooling_type != LLAMA_POOLING_TYPE_NONE) {
    return pass("a context that pools embeddings or ranks");
  }
  if (params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL) return pass("attention that is not causal");
  if (!llama_model_has_decoder(model)) return pass("a model without a decoder");
  if (const std::string gpu = Gpu(); !gpu.empty()) return {Decision::kPass, gpu};
  return {};
}

Decision DecideByModel(const Model& model) {
  if (!model.packable.ok()) return {Decision::kPass, model.packable.message()};
  if (model.info.recurrent) {
    return {Decision::kPass, "a model with recurrent layers: `tersekv run` packs it, the preload object does not yet"};
  }
  const llama_rope_type rope = llama_model_rope_type(model.model);
  if (rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE || rope == LLAMA_ROPE_TYPE_VISION) {
    return {Decision::kPass, "positions of several dimensions (M-RoPE), which images need"};
  }
  if (model.long_rope_from > 0 ||
      MetaValue(model.model, model.info.architecture + ".rope.scaling.type") == "longrope") {
    return {Decision::kPass, "LongRoPE picks its factors by the size of llama.cpp's own cache, which is small here"};
  }
  return {};
}

Decision Settle(Decision decision, const Settings& settings) {
  if (decision.kind == Decision::kPass && settings.strict) decision.kind = Decision::kRefuse;
  if (decision.kind == Decision::kPass) Say(1, "not packed, llama.cpp's own cache is used: {}", decision.reason);
  if (decision.kind == Decision::kRefuse) {
    Say(0, "refused: {}{}", decision.reason,
        settings.strict ? " (TERSEKV_STRICT=1; without it llama.cpp's own cache would be used)" : "");
  }
  return decision;
}

}  // namespace tersekv::llama::preload
