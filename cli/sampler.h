// SPDX-License-Identifier: Apache-2.0
// Picks the next token. The same seed and logits give the same tokens on every machine up to rounding of exp.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace tersekv::cli {

struct SamplerOptions {
  double temp = 0;      // 0 = greedy
  int top_k = 40;       // 0 = all
  double top_p = 0.95;  // 1 = all
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}
  // Index of the token, the lowest one on a tie; -1 when no logit is a finite number.
  int32_t Sample(std::span<const float> logits);

 private:
  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<std::pair<float, int32_t>> candidates_;  // (logit, token), best first
};

}  // namespace tersekv::cli
