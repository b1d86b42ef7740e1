// SPDX-License-Identifier: Apache-2.0
// Mean and scale of the rows of one head (docs/decisions/0001-contract.md, section 4). Sums run in token order in fp64.
#pragma once

#include <cstddef>

namespace tersekv {

inline constexpr int kStatsTokens = 128;  // a sequence without a profile measures this many, right after its sinks

// rows: [n, d], row t at rows + t * d. mean: [d].
void RowMean(const float* rows, size_t n, int d, float* mean);

// Keys: scale = sqrt(std), floored at 1e-3 of the head's largest, geometric mean 1. All-equal rows: 1 everywhere.
// inv_scale: fp32 reciprocals. mean: as RowMean gave it.
void RowScale(const float* rows, size_t n, int d, const float* mean, float* scale, float* inv_scale);

}  // namespace tersekv
