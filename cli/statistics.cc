// SPDX-License-Identifier: Apache-2.0
#include "cli/statistics.h"

#include <algorithm>

namespace tersekv::cli {

Spread SpreadOf(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t last = samples.size() - 1;
  const auto at = [&](size_t quarters) {  // linear between neighbours
    const size_t i = last * quarters / 4;
    const double part = static_cast<double>(last * quarters % 4) / 4;
    return samples[i] + part * (samples[std::min(i + 1, last)] - samples[i]);
  };
  return {at(2), at(1), at(3)};
}

}  // namespace tersekv::cli
