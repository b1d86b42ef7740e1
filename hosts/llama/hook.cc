// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "src/base/check.h"

namespace tersekv::llama {

const char* HostModeName(HostMode mode) {
  switch (mode) {
    case HostMode::kCustom:
      return "custom";
    case HostMode::kOverwrite:
      return "overwrite";
    case HostMode::kAuto:
      break;
  }
  return "auto";
}

Hook::Hook(KvCache* cache, HostLayers layers, HostMode mode, int threads, StatisticsSink* sink)
    : cache_(cache), layers_(std::move(layers)), mode_(mode), sink_(sink) {
  if (mode_ == HostMode::kOverwrite) pool_ = std::make_unique<ThreadPool>(threads);
}

void Hook::Begin(std::span<const StepToken> tokens, DraftRows* draft, std::span<const uint32_t> rows) {
  TERSEKV_CHECK(rows.empty() || (rows.size() == tokens.size() && draft == nullptr));
  tokens_.assign(tokens.begin(), tokens.end());
  rows_.assign(rows.begin(), rows.end());
  draft_ = draft;
  next_ = 0;
  status_ = Status();
}

Status Hook::End(bool ok) {
  if (in_step_) {
    in_step_ = false;
    if (!ok || draft_ != nullptr) {
      cache_->AbortStep();
    } else if (const Status s = cache_->EndStep(); status_.ok()) {
      status_ = s;
    }
  }
  if (!ok) return status_;
  if (status_.ok() && next_ != BatchRows()) {
    status_ =
        Internal(fmt::format("the engine ran {} of {} tokens through the hook: this llama.cpp builds its graph in a "
                             "way this version does not know",
                             next_, BatchRows()));
  }
  return status_;
}

bool Hook::OnNode(ggml_tensor* node, bool ask, void* userdata) {
  Hook& hook = *static_cast<Hook*>(userdata);
  const bool ours = hook.Ours(node, ask);
  if (hook.next_callback_ == nullptr) return ours;
  if (ask) {
    hook.next_wants_ = hook.next_callback_(node, true, hook.next_userdata_);
    return ours || hook.next_wants_;
  }
  const bool go_on = !hook.next_wants_ || hook.next_callback_(node, false, hook.next_userdata_);
  return ours && go_on;
}

bool Hook::Ours(ggml_tensor* node, bool ask) {
  const NodeInfo info = ReadNode(node);
  if (info.kind == NodeKind::kOther) return !ask;
  return mode_ == HostMode::kCustom ? Custom(node, info, ask) : Overwrite(node, info, ask);
}

// Nodes are rewritten while the graph is asked for, so the pass is never split; a reused graph comes rewritten.
bool Hook::Custom(ggml_tensor* node, const NodeInfo& info, bool ask) {
  if (!ask) return true;
  if (info.kind == NodeKind::kStoreK && Ordinal(info.layer) == 0) StartPass(node);
  if (node->op != GGML_OP_CUSTOM)
    RewriteAsCustom(node, info.kind == NodeKind::kAttention ? AttentionOpFn : StoreOp, this);
  return false;
}

bool Hook::Overwrite(ggml_tensor* node, const NodeInfo& info, bool ask) {
  if (ask) return true;
  if (info.kind == NodeKind::kStoreK && Ordinal(info.layer) == 0) StartPass(node);
  if (info.kind == NodeKind::kAttention) {
    pool_->Run([&](int worker, int workers) { Attend(node, worker, workers); });
  } else {
    pool_->Run([&](int worker, int workers) { Store(node, worker, workers); });
  }
  return true;
}

// More threads than the cache has room for: the rest of them has nothing to do.
void Hook::StoreOp(ggml_tensor* node, int worker, int workers, void* userdata) {
  Hook& hook = *static_cast<Hook*>(userdata);
  const int most = std::min(workers, hook.cache_->config().max_workers);
  if (worker < most) hook.Store(node, worker, most);
}

void Hook::AttentionOpFn(ggml_tensor* node, int worker, int workers, void* userdata) {
  Hook& hook = *static_cast<Hook*>(userdata);
  const int most = std::min(workers, hook.cache_->config().max_workers);
  if (worker < most) hook.Attend(node, worker, most);
}

// The first layer's K: a new forward pass (ubatch) begins, the one before it is complete.
void Hook::StartPass(const ggml_tensor* node) {
  if (in_step_) {
    in_step_ = false;
    if (draft_ != nullptr) {
      cache_->AbortStep();
      status_ = Internal("the engine ran a draft in several forward passes");
    } else if (const Status s = cache_->EndStep(); status_.ok()) {
      status_ = s;
    }
  }
  const size_t n = static_cast<size_t>(node->src[0]->ne[1]);
  if (next_ + n > BatchRows()) {
    status_ = Internal(fmt::format("the engine runs {} tokens where {} were given", next_ + n, BatchRows()));
  }
  if (!status_.ok()) return;
  std::vector<uint32_t> rows;
  auto step = std::span(tokens_).subspan(rows_.empty() ? next_ : 0);
  if (rows_.empty()) {
    step = step.first(n);
  } else {
    const auto begin = std::lower_bound(rows_.begin(), rows_.end(), next_);
    const auto end = std::lower_bound(begin, rows_.end(), next_ + n);
    step = step.subspan(static_cast<size_t>(begin - rows_.begin()), static_cast<size_t>(end - begin));
    for (auto row = begin; row != end; ++row) rows.push_back(*row - static_cast<uint32_t>(next_));
  }
  shared_.Start(cache_->config(), rows);
  if (sink_ != nullptr) status_ = sink_->BeginStep(step);
  if (status_.ok()) status_ = cache_->BeginStep(step);
  in_step_ = status_.ok();
  if (in_step_ && draft_ != nullptr) draft_->Start(cache_->config(), step);
  next_ += n;
}

// node: SET_ROWS, src[0] = f32 rows [width, tokens].
void Hook::Store(const ggml_tensor* node, int worker, int workers) {
  if (!in_step_) return;
  const NodeInfo info = ReadNode(node);
  const ggml_tensor* rows = node->src[0];
  TERSEKV_CHECK(rows->type == GGML_TYPE_F32 && rows->nb[0] == sizeof(float));
  const int layer = Ordinal(info.layer);
  WriteRows(layer, info.kind == NodeKind::kStoreK ? Kv::kK : Kv::kV, rows, worker, workers);
  // MLA stores no V: its one head is the first channels of the row.
  if (layers_.latent[static_cast<size_t>(layer)]) WriteRows(layer, Kv::kV, rows, worker, workers);
}

void Hook::WriteRows(int layer, Kv side, const ggml_tensor* rows, int worker, int workers) {
  const auto* data = static_cast<const float*>(rows->data);
  auto stride = static_cast<ptrdiff_t>(rows->nb[1]);
  if (shared_.active()) {
    const LayerShape& shape = cache_->config().layers[static_cast<size_t>(layer)];
    const auto width = static_cast<size_t>(shape.kv_heads * (side == Kv::kK ? shape.head_dim_k : shape.head_dim_v));
    data = shared_.Spread(data, stride, width, worker);
    stride = static_cast<ptrdiff_t>(width * sizeof(float));
  }
  cache_->WriteRows(layer, side, data, stride, worker, workers);
  if (sink_ != nullptr) sink_->WriteRows(layer, side, data, stride, worker, workers);
  if (draft_ != nullptr && worker == 0) draft_->Store(layer, side, data, stride);
}

void Hook::Attend(ggml_tensor* node, int worker, int workers) {
  if (!in_step_) {  // a failed pass still runs to its end: give it numbers
    if (worker == 0) std::memset(node->data, 0, ggml_nbytes(node));
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const AttentionShape shape = ReadAttention(node);
  const AttentionOp op = ReadAttentionOp(node);
  const ggml_tensor* q = node->src[0];
  AttentionParams params;
  params.scale = op.scale;
  params.softcap = op.softcap;
  params.max_alibi_bias = op.max_bias;
  params.sinks = node->src[4] != nullptr ? static_cast<const float*>(node->src[4]->data) : nullptr;
  Queries queries;
  queries.data = static_cast<const float*>(q->data);
  queries.token_stride = static_cast<ptrdiff_t>(q->nb[1]);
  queries.head_stride = static_cast<ptrdiff_t>(q->nb[2]);
  queries.heads = shape.heads;
  queries.out = static_cast<float*>(node->data);
  queries.out_head_stride = static_cast<ptrdiff_t>(node->nb[1]);
  queries.out_token_stride = static_cast<ptrdiff_t>(node->nb[2]);
  const int layer = Ordinal(ReadNode(node).layer);
  params.window = layers_.windows[static_cast<size_t>(layer)];
  const Queries asked = shared_.active() ? shared_.Spread(queries, layer, worker) : queries;
  if (sink_ != nullptr) sink_->Attend(layer, params, asked, worker, workers);
  cache_->Attend(layer, params, asked, worker, workers);
  if (shared_.active()) shared_.Gather(queries, layer, workers);
  if (worker == 0) {
    attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

}  // namespace tersekv::llama
