// SPDX-License-Identifier: Apache-2.0
// One attention over a random history, with random features.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/gpu/history.h"

namespace tersekv::gpu {

struct AttendCase {
  std::shared_ptr<const History> history;
  int heads = 0, q_len = 1, window = 0;
  float scale = 1, softcap = 0;
  bool rotate_out = true;
  cuda::Type q_type = cuda::Type::kF32, out_type = cuda::Type::kF32;
  std::vector<float> q;              // [batch, q_len, heads, d], as the device reads it
  std::vector<float> sinks, slopes;  // [heads] or empty
  DeviceArray<float> q32, out32, device_sinks, device_slopes, lse, l_packed;
  DeviceArray<uint16_t> q16, out16;
  DeviceArray<uint8_t> workspace;

  // Case `index` of a codec: 0 is plain; later ones draw features.
  static AttendCase Make(HistoryShape shape, int index, bool small, Random* random);

  cuda::AttendParams Params() const;
  // Plan, attend, read back; outputs are poisoned before.
  void Run(std::vector<float>* out, std::vector<float>* lse_out);
  void Launch(cudaStream_t stream) const;
  void Poison();
  void Read(std::vector<float>* out, std::vector<float>* lse_out) const;
  std::string Name() const;
};

}  // namespace tersekv::gpu
