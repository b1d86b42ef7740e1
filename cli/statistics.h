// SPDX-License-Identifier: Apache-2.0
// Timings that are repeated: what is shown of them.
#pragma once

#include <vector>

namespace tersekv::cli {

struct Spread {
  double median = 0, low = 0, high = 0;  // low, high: quartiles
};
// samples: at least one.
Spread SpreadOf(std::vector<double> samples);

}  // namespace tersekv::cli
