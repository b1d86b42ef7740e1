// SPDX-License-Identifier: Apache-2.0
// How a context turns its keys with their position, read off its graph: what a shift of positions has to turn again.
#pragma once

#include <vector>

#include "ggml.h"
#include "hosts/llama/layers.h"
#include "tersekv/rope.h"

namespace tersekv::llama::preload {

class Rotator {
 public:
  explicit Rotator(const HostLayers& layers) : ordinals_(layers.ordinals), seen_(layers.windows.size(), false) {
    rotations_.resize(layers.windows.size());
  }

  // ggml_backend_sched_eval_callback, for Hook::SetNext; userdata is the Rotator. Wants no node.
  static bool Observe(ggml_tensor* node, bool ask, void* userdata);

  // Whether each layer's keys come plainly from a rotation that is known here.
  bool can_shift() const;
  const std::vector<KeyRotation>& rotations() const { return rotations_; }  // by KV layer

 private:
  bool Learn(const ggml_tensor* rows, KeyRotation* rotation) const;

  std::vector<int> ordinals_;
  std::vector<bool> seen_;
  std::vector<KeyRotation> rotations_;
};

}  // namespace tersekv::llama::preload
