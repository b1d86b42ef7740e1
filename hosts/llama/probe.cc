// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/probe.h"

#include <fmt/format.h>

#include <map>

#include "hosts/llama/graph.h"
#include "hosts/llama/logging.h"

namespace tersekv::llama {
namespace {

struct Seen {
  bool k = false, v = false, attention = false;
  bool shares_kv_memory = false;
  AttentionShape shape;
};

// Watches every node, computes nothing itself.
bool Watch(ggml_tensor* node, bool ask, void* userdata) {
  if (!ask) return true;
  auto& seen = *static_cast<std::map<int, Seen>*>(userdata);
  const NodeInfo info = ReadNode(node);
  if (info.kind == NodeKind::kOther) return false;
  Seen& layer = seen[info.layer];
  layer.k |= info.kind == NodeKind::kStoreK;
  layer.v |= info.kind == NodeKind::kStoreV;
  if (info.kind == NodeKind::kAttention) {
    layer.attention = true;
    layer.shares_kv_memory = info.shares_kv_memory;
    layer.shape = ReadAttention(node);
  }
  return false;
}

}  // namespace

Status ProbeLayers(llama_model* model, std::vector<LayerShape>* layers, std::vector<int>* ordinals) {
  std::map<int, Seen> seen;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  params.n_batch = params.n_ubatch = 32;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.kv_unified = true;
  params.offload_kqv = params.op_offload = false;
  params.cb_eval = Watch;
  params.cb_eval_user_data = &seen;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) {
    return Unsupported(
        fmt::format("llama.cpp makes no context with flash attention for this model: {}", TakeEngineErrors()));
  }
  seen.clear();
  llama_token tokens[] = {0, 0};
  const int rc = llama_decode(context, llama_batch_get_one(tokens, 2));
  llama_free(context);
  if (rc != 0)
    return Internal(fmt::format("a two-token trial of the model failed (code {}): {}", rc, TakeEngineErrors()));
  const int model_layers = llama_model_n_layer(model);
  ordinals->assign(static_cast<size_t>(model_layers), -1);
  for (const auto& [layer, s] : seen) {
    const auto refuse = [&, l = layer](const char* reason) {
      return Unsupported(fmt::format(
          "layer {} {}: this version cannot pack it; llama.cpp's own cache (--kv stock-f16) works", l, reason));
    };
    if (layer >= model_layers) return refuse("is beyond the model's layers");
    if (s.shares_kv_memory || !s.v) return refuse("keeps K and V as one latent (MLA)");
    if (s.shape.streams != 1) return refuse("runs its sequences in separate streams");
    if (!s.k || !s.attention) return refuse("shares its KV with another layer or has no flash attention");
    (*ordinals)[static_cast<size_t>(layer)] = static_cast<int>(layers->size());
    layers->push_back({s.shape.heads, s.shape.kv_heads, s.shape.head_dim_k, s.shape.head_dim_v});
  }
  if (layers->empty()) return Unsupported("no attention layer was found in the model's graph");
  return {};
}

}  // namespace tersekv::llama
