// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/graph.h"

#include <cstdio>
#include <cstring>

namespace tersekv::llama {
namespace {

constexpr int kMarkOffset = 32, kSavedOffset = 36;  // bytes of op_params behind what a custom node uses
constexpr int32_t kStoreMark = 0x7e4a0001, kAttentionMark = 0x7e4a0002;

const ggml_tensor* Root(const ggml_tensor* t) {
  while (t->view_src != nullptr) t = t->view_src;
  return t;
}

// Layer of a cache tensor "cache_k_l7" / "cache_v_l7", or -1.
int CacheLayer(const ggml_tensor* t, char side) {
  int layer = -1;
  char found = 0;
  return std::sscanf(Root(t)->name, "cache_%c_l%d", &found, &layer) == 2 && found == side ? layer : -1;
}

// The cache behind an attention operand; an f32 cache has a cast in between.
int OperandLayer(const ggml_tensor* t, char side) {
  for (int hops = 0; hops < 8 && t != nullptr; ++hops, t = t->src[0]) {
    if (const int layer = CacheLayer(t, side); layer >= 0) return layer;
  }
  return -1;
}

int32_t Mark(const ggml_tensor* node) {
  int32_t mark = 0;
  if (node->op == GGML_OP_CUSTOM) std::memcpy(&mark, reinterpret_cast<const char*>(node->op_params) + kMarkOffset, 4);
  return mark;
}

}  // namespace

NodeInfo ReadNode(const ggml_tensor* node) {
  const int32_t mark = Mark(node);
  NodeInfo info;
  if (node->op == GGML_OP_SET_ROWS || mark == kStoreMark) {
    if ((info.layer = CacheLayer(node, 'k')) >= 0)
      info.kind = NodeKind::kStoreK;
    else if ((info.layer = CacheLayer(node, 'v')) >= 0)
      info.kind = NodeKind::kStoreV;
  } else if (node->op == GGML_OP_FLASH_ATTN_EXT || mark == kAttentionMark) {
    if ((info.layer = OperandLayer(node->src[1], 'k')) >= 0) {
      info.kind = NodeKind::kAttention;
      info.shares_kv_memory = OperandLayer(node->src[2], 'v') < 0;
    }
  }
  return info;
}

AttentionShape ReadAttention(const ggml_tensor* node) {
  const ggml_tensor* q = node->src[0];
  const ggml_tensor* k = node->src[1];
  AttentionShape shape;
  shape.head_dim_k = static_cast<int>(q->ne[0]);
  shape.tokens = static_cast<int>(q->ne[1]);
  shape.heads = static_cast<int>(q->ne[2]);
  shape.streams = static_cast<int>(q->ne[3]);
  shape.kv_heads = static_cast<int>(k->ne[2]);
  shape.head_dim_v = static_cast<int>(node->ne[0]);
  return shape;
}

AttentionOp ReadAttentionOp(const ggml_tensor* node) {
  float saved[3];
  const char* params = reinterpret_cast<const char*>(node->op_params);
  std::memcpy(saved, params + (Mark(node) == kAttentionMark ? kSavedOffset : 0), sizeof saved);
  return {saved[0], saved[1], saved[2]};
}

void RewriteAsCustom(ggml_tensor* node, ggml_custom_op_t fn, void* userdata) {
  static_assert(GGML_MAX_OP_PARAMS >= kSavedOffset + 12);
  // The public constructor fills a template; its parameters are copied.
  const ggml_init_params params = {4 * ggml_tensor_overhead(), nullptr, true};
  ggml_context* context = ggml_init(params);
  ggml_tensor* argument = ggml_new_tensor_1d(context, GGML_TYPE_F32, 1);
  const ggml_tensor* custom =
      ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, &argument, 1, fn, GGML_N_TASKS_MAX, userdata);
  char next[GGML_MAX_OP_PARAMS] = {};
  std::memcpy(next, custom->op_params, kMarkOffset);
  ggml_free(context);
  const int32_t mark = node->op == GGML_OP_SET_ROWS ? kStoreMark : kAttentionMark;
  std::memcpy(next + kMarkOffset, &mark, 4);
  std::memcpy(next + kSavedOffset, node->op_params, 12);
  std::memcpy(node->op_params, next, sizeof next);
  node->op = GGML_OP_CUSTOM;
}

}  // namespace tersekv::llama
