// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/probe.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "ggml-backend.h"
#include "hosts/llama/graph.h"
#include "hosts/llama/logging.h"
#include "src/base/check.h"

namespace tersekv::llama {
namespace {

struct Seen {
  int k_stores = 0, v_stores = 0, attentions = 0;
  bool latent = false;
  bool same_shape = true;  // of all attentions that read this layer's KV
  AttentionShape shape;
  int visible = -1;  // cells that the last query sees; -2: not the same for all that read this layer
};

struct Watcher {
  std::map<int, Seen> seen;
  bool masks = false;
};

// Cells that the last query of an attention node sees.
int VisibleCells(const ggml_tensor* mask) {
  const int64_t cells = mask->ne[0], row = mask->ne[1] - 1;
  std::vector<uint8_t> bytes(static_cast<size_t>(cells) * ggml_type_size(mask->type));
  ggml_backend_tensor_get(mask, bytes.data(), static_cast<size_t>(row) * mask->nb[1], bytes.size());
  int visible = 0;
  for (int64_t c = 0; c < cells; ++c) {
    const float value = mask->type == GGML_TYPE_F16
                            ? ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(bytes.data())[c])
                            : reinterpret_cast<const float*>(bytes.data())[c];
    visible += std::isinf(value) ? 0 : 1;
  }
  return visible;
}

// Watches every node, computes nothing itself.
bool Watch(ggml_tensor* node, bool ask, void* userdata) {
  auto& watcher = *static_cast<Watcher*>(userdata);
  const NodeInfo info = ReadNode(node);
  if (info.kind == NodeKind::kOther) return !ask;
  Seen& layer = watcher.seen[info.layer];
  const bool attention = info.kind == NodeKind::kAttention;
  if (ask) {
    layer.k_stores += info.kind == NodeKind::kStoreK ? 1 : 0;
    layer.v_stores += info.kind == NodeKind::kStoreV ? 1 : 0;
    if (attention) {
      const AttentionShape shape = ReadAttention(node);
      if (layer.attentions++ > 0) layer.same_shape &= layer.shape == shape && layer.latent == info.shares_kv_memory;
      layer.shape = shape;
      layer.latent = info.shares_kv_memory;
    }
    return attention && watcher.masks;  // a mask can be read once it is computed
  }
  if (attention && watcher.masks && node->src[3] != nullptr) {
    const int visible = VisibleCells(node->src[3]);
    layer.visible = layer.visible == -1 || layer.visible == visible ? visible : -2;
  }
  return true;
}

struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};

class Prober {
 public:
  Status Start(llama_model* model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = 32;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified = true;
    params.swa_full = true;  // windowed layers keep what is shifted
    params.offload_kqv = params.op_offload = false;
    params.cb_eval = Watch;
    params.cb_eval_user_data = &watcher_;
    context_.reset(llama_init_from_model(model, params));
    if (context_ == nullptr) {
      return Unsupported(
          fmt::format("llama.cpp makes no context with flash attention for this model: {}", TakeEngineErrors()));
    }
    return {};
  }

  Status Decode(int32_t first, int32_t tokens) {
    watcher_.seen.clear();
    llama_batch batch = llama_batch_init(tokens, 0, 1);
    batch.n_tokens = tokens;
    for (int32_t i = 0; i < tokens; ++i) {
      batch.token[i] = 0;
      batch.pos[i] = first + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = i + 1 == tokens ? 1 : 0;
    }
    const int rc = llama_decode(context_.get(), batch);
    llama_batch_free(batch);
    if (rc == 0) return {};
    return Internal(
        fmt::format("a trial of {} tokens of the model failed (code {}): {}", tokens, rc, TakeEngineErrors()));
  }

  // Cells at positions 0, 1 and n - 1, then a query at n: a window of n hides the first, full attention none.
  Status LookAtMasks(int window) {
    llama_memory_t memory = llama_get_memory(context_.get());
    if (window < 4 || !llama_memory_can_shift(memory)) {
      return Unsupported(
          fmt::format("which layers have the sliding window of {} cannot be found out: llama.cpp does not shift this "
                      "model's positions. Its own cache (--kv stock-f16) works",
                      window));
    }
    llama_memory_clear(memory, true);
    TERSEKV_RETURN_IF_ERROR(Decode(0, 3));
    llama_memory_seq_add(memory, 0, 2, -1, window - 3);
    watcher_.masks = true;
    return Decode(window, 1);
  }

  const std::map<int, Seen>& seen() const { return watcher_.seen; }

 private:
  Watcher watcher_;
  std::unique_ptr<llama_context, ContextFree> context_;
};

// Why a layer cannot be served; empty when it can.
std::string Refusal(const Seen& s, bool beyond) {
  if (beyond) return "is beyond the model's layers";
  if (s.attentions == 0) {
    return "runs without flash attention in llama.cpp (as Grok does), so that its attention cannot be taken over";
  }
  if (s.k_stores == 0) return "attends to keys that are stored by no layer";
  if (s.k_stores > 1) return "has a second cache of keys (an indexer)";
  if (s.shape.streams != 1) return "runs its sequences in separate streams";
  if (!s.same_shape) return "is read by layers of different shapes";
  if (s.latent && s.shape.kv_heads != 1) return "keeps K and V as one latent of several heads";
  if (!s.latent && s.v_stores != 1) return "stores its values in a way this version does not know";
  return "";
}

}  // namespace

Status ProbeLayers(llama_model* model, std::vector<LayerShape>* shapes, HostLayers* layers) {
  Prober prober;
  TERSEKV_RETURN_IF_ERROR(prober.Start(model));
  TERSEKV_RETURN_IF_ERROR(prober.Decode(0, 2));
  const std::map<int, Seen> seen = prober.seen();
  const int model_layers = llama_model_n_layer(model), window = llama_model_n_swa(model);
  layers->ordinals.assign(static_cast<size_t>(model_layers), -1);
  const auto refuse = [](int layer, const std::string& reason) {
    return Unsupported(fmt::format(
        "layer {} {}: this version cannot pack it; llama.cpp's own cache (--kv stock-f16) works", layer, reason));
  };
  for (const auto& [layer, s] : seen) {
    if (const std::string reason = Refusal(s, layer >= model_layers); !reason.empty()) return refuse(layer, reason);
    layers->ordinals[static_cast<size_t>(layer)] = static_cast<int>(shapes->size());
    shapes->push_back({s.shape.heads, s.shape.kv_heads, s.shape.head_dim_k, s.shape.head_dim_v});
    layers->latent.push_back(s.latent);
  }
  if (shapes->empty()) return Unsupported("no attention layer was found in the model's graph");
  layers->windows.assign(shapes->size(), 0);
  if (window <= 0) return {};
  TERSEKV_RETURN_IF_ERROR(prober.LookAtMasks(window));
  for (const auto& [layer, s] : prober.seen()) {
    if (s.visible == 4) continue;
    if (s.visible != 3) {
      return refuse(layer,
                    fmt::format("masks its keys in another way than by a window of {} (chunks, as Llama 4)", window));
    }
    layers->windows[static_cast<size_t>(layers->ordinals[static_cast<size_t>(layer)])] = window;
  }
  return {};
}

}  // namespace tersekv::llama
