// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gpu/decoder.h"

#include "src/base/half.h"
#include "src/codec/lloyd_max.h"

namespace tersekv::gpu {

Decoder::Decoder(const History& history, int kv_head, Kv side)
    : h_(history),
      kv_head_(kv_head),
      side_(side),
      rotation_(RotationKind::kHadamard, history.pool().seed, history.pool().layer, kv_head, side == Kv::kV,
                history.shape().d),
      scratch_(static_cast<size_t>(history.shape().d)) {}

void Decoder::Decode(int64_t slot, bool transformed, std::vector<float>* row) {
  const size_t d = static_cast<size_t>(h_.shape().d), at = static_cast<size_t>(kv_head_) * d;
  row->resize(d);
  if (!h_.pool().block.scaled()) {
    for (size_t c = 0; c < d; ++c) (*row)[c] = h_.ReadRaw(slot, kv_head_, side_, static_cast<int>(c));
    return;
  }
  uint16_t bits = 0;
  h_.ReadRecord(slot, kv_head_, side_, &codes_, &bits);
  const auto& table = LevelsOf(h_.pool().block.bits(side_));
  for (size_t c = 0; c < d; ++c) (*row)[c] = BF16ToF32(bits) * static_cast<float>(table.level[codes_[c]]);
  if (transformed) return;
  rotation_.ApplyTransposed(row->data(), scratch_.data());
  if (h_.k_mean.empty()) return;
  for (size_t c = 0; c < d; ++c) {
    if (side_ == Kv::kK) (*row)[c] *= h_.k_scale[at + c];
    (*row)[c] += side_ == Kv::kK ? h_.k_mean[at + c] : h_.v_mean[at + c];
  }
}

}  // namespace tersekv::gpu
