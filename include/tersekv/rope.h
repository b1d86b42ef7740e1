// SPDX-License-Identifier: Apache-2.0
// How keys turn with their position (RoPE): what shifting the positions of cached tokens needs to know. All functions
// are thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace tersekv {

// The keys of one layer. Pair i of channels turns by frequency[i] radians a position: channels first_channel + 2i and
// first_channel + 2i + 1 when interleaved, else first_channel + i and first_channel + i + pairs.
struct KeyRotation {
  std::vector<double> frequency;  // [pairs]; empty: keys of this layer know no position
  bool interleaved = false;
  int first_channel = 0;
};

// The frequencies of llama.cpp's rope operator.
struct RopeScaling {
  int channels = 0;  // that turn (n_rot), even
  double base = 10000;
  double scale = 1;          // freq_scale: 1 / factor of linear scaling
  double extrapolation = 0;  // ext_factor: YaRN, 0 = off
  double beta_fast = 32, beta_slow = 1;
  int original_context = 0;         // YaRN
  std::vector<float> factors = {};  // [channels / 2] frequencies are divided by, or empty
};
std::vector<double> RopeFrequencies(const RopeScaling& scaling);

}  // namespace tersekv
