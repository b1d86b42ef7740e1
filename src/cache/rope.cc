// SPDX-License-Identifier: Apache-2.0
#include "tersekv/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tersekv {

// YaRN: Peng et al. 2023, section 3.2: the first pairs turn as they are, the last ones are scaled, a ramp between them.
std::vector<double> RopeFrequencies(const RopeScaling& s) {
  std::vector<double> frequency(static_cast<size_t>(std::max(s.channels / 2, 0)));
  const auto ramp_end = [&s](double beta) {
    return s.channels * std::log(s.original_context / (beta * 2 * std::numbers::pi)) / (2 * std::log(s.base));
  };
  double low = 0, high = 0;
  if (s.extrapolation != 0) {
    low = std::max(0.0, std::floor(ramp_end(s.beta_fast)));
    high = std::min(s.channels - 1.0, std::ceil(ramp_end(s.beta_slow)));
  }
  for (size_t i = 0; i < frequency.size(); ++i) {
    const double plain = std::pow(s.base, -2.0 * static_cast<double>(i) / s.channels) /
                         (s.factors.empty() ? 1.0 : static_cast<double>(s.factors[i]));
    frequency[i] = s.scale * plain;
    if (s.extrapolation == 0) continue;
    const double y = (static_cast<double>(i) - low) / std::max(0.001, high - low);
    const double mix = (1 - std::clamp(y, 0.0, 1.0)) * s.extrapolation;
    frequency[i] = frequency[i] * (1 - mix) + plain * mix;
  }
  return frequency;
}

}  // namespace tersekv
