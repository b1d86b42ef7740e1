// SPDX-License-Identifier: Apache-2.0
// What the CPU decodes from a history's records, one KV head and side.
#pragma once

#include <vector>

#include "src/transform/rotation.h"
#include "tests/cuda/gpu/history.h"

namespace tersekv::gpu {

class Decoder {
 public:
  Decoder(const History& history, int kv_head, Kv side);
  // [d], in fp32 and in the CPU's order of operations. transformed: scale * level, not rotated back.
  void Decode(int64_t slot, bool transformed, std::vector<float>* row);

 private:
  const History& h_;
  int kv_head_;
  Kv side_;
  RotationOp rotation_;
  std::vector<uint8_t> codes_;
  std::vector<float> scratch_;
};

}  // namespace tersekv::gpu
