// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/rotator.h"

#include <algorithm>
#include <cstring>

#include "ggml-backend.h"
#include "hosts/llama/graph.h"

namespace tersekv::llama::preload {

bool Rotator::Observe(ggml_tensor* node, bool ask, void* userdata) {
  if (!ask) return true;
  Rotator& self = *static_cast<Rotator*>(userdata);
  const NodeInfo info = ReadNode(node);
  if (info.kind != NodeKind::kStoreK) return false;
  const auto layer = static_cast<size_t>(self.ordinals_[static_cast<size_t>(info.layer)]);
  self.seen_[layer] = self.Learn(node->src[0], &self.rotations_[layer]);
  return false;
}

// rows: [width, tokens], at best a view of what ROPE wrote.
bool Rotator::Learn(const ggml_tensor* rows, KeyRotation* rotation) const {
  for (int hops = 0; hops < 8 && rows != nullptr && rows->op != GGML_OP_ROPE; ++hops) {
    const bool same_values = rows->op == GGML_OP_VIEW || rows->op == GGML_OP_RESHAPE || rows->op == GGML_OP_PERMUTE ||
                             rows->op == GGML_OP_CONT;
    if (!same_values) return false;
    rows = rows->src[0];
  }
  if (rows == nullptr || rows->op != GGML_OP_ROPE) return false;
  int32_t whole[5];
  float real[6];
  std::memcpy(whole, rows->op_params, sizeof whole);
  std::memcpy(real, reinterpret_cast<const char*>(rows->op_params) + sizeof whole, sizeof real);
  const int mode = whole[2];
  if (mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX) return false;
  RopeScaling scaling;
  scaling.channels = whole[1];
  scaling.original_context = whole[4];
  scaling.base = real[0];
  scaling.scale = real[1];
  scaling.extrapolation = real[2];
  scaling.beta_fast = real[4];
  scaling.beta_slow = real[5];
  if (const ggml_tensor* factors = rows->src[2]) {
    if (factors->type != GGML_TYPE_F32 || factors->buffer == nullptr || !ggml_backend_buffer_is_host(factors->buffer)) {
      return false;
    }
    scaling.factors.resize(static_cast<size_t>(factors->ne[0]));
    ggml_backend_tensor_get(factors, scaling.factors.data(), 0, scaling.factors.size() * sizeof(float));
  }
  rotation->interleaved = mode == GGML_ROPE_TYPE_NORMAL;
  rotation->frequency = RopeFrequencies(scaling);
  return true;
}

bool Rotator::can_shift() const {
  return std::all_of(seen_.begin(), seen_.end(), [](bool seen) { return seen; });
}

}  // namespace tersekv::llama::preload
