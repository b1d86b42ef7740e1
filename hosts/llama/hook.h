// SPDX-License-Identifier: Apache-2.0
// Inside a forward pass: gives K and V rows to the cache and puts our attention in place of the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ggml-backend.h"
#include "hosts/llama/draft_rows.h"
#include "hosts/llama/graph.h"
#include "hosts/llama/layers.h"
#include "hosts/llama/shared_rows.h"
#include "src/base/thread_pool.h"
#include "tersekv/cache.h"
#include "tersekv/calibration.h"
#include "tersekv/llama.h"

namespace tersekv::llama {

class Hook {
 public:
  // cache: written by this hook only. sink: sees the same rows and queries; may be null.
  Hook(KvCache* cache, HostLayers layers, HostMode mode, int threads, StatisticsSink* sink = nullptr);

  void SetCache(KvCache* cache) { cache_ = cache; }  // between forward passes

  // The application's own callback goes on seeing every node; between forward passes. Null: none.
  void SetNext(ggml_backend_sched_eval_callback next, void* userdata) {
    next_callback_ = next;
    next_userdata_ = userdata;
  }

  // Around one llama_decode of these tokens, in batch order. draft: takes the rows of the one forward pass, and the
  // cache stays as it was.
  // rows: where tokens belong to several sequences, there is one of `tokens` for each of them, and this is the number
  // of its token in the batch; empty: each has its own. Not with a draft.
  void Begin(std::span<const StepToken> tokens, DraftRows* draft = nullptr, std::span<const uint32_t> rows = {});
  // ok: the engine's own verdict. Commits the last forward pass, or takes it back; any failure of ours is returned.
  Status End(bool ok);

  // ggml_backend_sched_eval_callback; userdata is the Hook.
  static bool OnNode(ggml_tensor* node, bool ask, void* userdata);

  double attention_seconds() const { return attention_seconds_; }
  size_t scratch_bytes() const { return shared_.bytes(); }  // beside the cache's; between forward passes

 private:
  static void StoreOp(ggml_tensor* node, int worker, int workers, void* userdata);
  static void AttentionOpFn(ggml_tensor* node, int worker, int workers, void* userdata);

  bool Custom(ggml_tensor* node, const NodeInfo& info, bool ask);
  bool Overwrite(ggml_tensor* node, const NodeInfo& info, bool ask);
  void StartPass(const ggml_tensor* node);
  void Store(const ggml_tensor* node, int worker, int workers);
  void Attend(ggml_tensor* node, int worker, int workers);
  bool Ours(ggml_tensor* node, bool ask);
  size_t BatchRows() const { return rows_.empty() ? tokens_.size() : rows_.back() + size_t{1}; }
  int Ordinal(int layer) const { return layers_.ordinals[static_cast<size_t>(layer)]; }
  void WriteRows(int layer, Kv side, const ggml_tensor* rows, int worker, int workers);

  KvCache* cache_;
  HostLayers layers_;
  HostMode mode_;
  StatisticsSink* sink_;
  std::unique_ptr<ThreadPool> pool_;  // overwrite mode
  std::vector<StepToken> tokens_;
  std::vector<uint32_t> rows_;  // as Begin's, or empty
  SharedRows shared_;
  size_t next_ = 0;  // first row of the next forward pass
  bool in_step_ = false;
  DraftRows* draft_ = nullptr;
  Status status_;
  ggml_backend_sched_eval_callback next_callback_ = nullptr;
  void* next_userdata_ = nullptr;
  bool next_wants_ = false;  // the node that was asked about last
  double attention_seconds_ = 0;
};

}  // namespace tersekv::llama
