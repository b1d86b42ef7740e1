// SPDX-License-Identifier: Apache-2.0
// Reading llama.cpp's graphs: which node stores K or V of which layer, which one is attention.
#pragma once

#include <cstdint>

#include "ggml.h"

namespace tersekv::llama {

enum class NodeKind { kOther, kStoreK, kStoreV, kAttention };

struct NodeInfo {
  NodeKind kind = NodeKind::kOther;
  int layer = -1;                 // the model's layer number, from the cache tensor's name
  bool shares_kv_memory = false;  // kAttention: V is a view of K (MLA)
};

// Nodes keep their meaning after RewriteAsCustom.
NodeInfo ReadNode(const ggml_tensor* node);

struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim_k = 0, head_dim_v = 0, tokens = 0, streams = 0;
  bool operator==(const AttentionShape&) const = default;
};
// Of a kAttention node: q [dk, tokens, heads, streams], k [dk, cells, kv_heads, streams], out [dv, heads, tokens,
// streams].
AttentionShape ReadAttention(const ggml_tensor* node);

struct AttentionOp {
  float scale = 1, max_bias = 0, softcap = 0;
};
AttentionOp ReadAttentionOp(const ggml_tensor* node);

// Makes GGML_OP_CUSTOM of a node: fn runs on the engine's threads in its place. The operation's own parameters move to
// free bytes behind, where ReadAttentionOp finds them. No supported contract of ggml: tried out at start-up
// (self_test.h).
void RewriteAsCustom(ggml_tensor* node, ggml_custom_op_t fn, void* userdata);

}  // namespace tersekv::llama
