// SPDX-License-Identifier: Apache-2.0
// What the Lloyd-Max codec costs by theory: the one table that allocation and probe use.
#pragma once

namespace tersekv {

inline constexpr int kLeastCodeBits = 2, kMostCodeBits = 8;

// D(b) = E|x - x'|^2 for |x| = 1 after rotation; bits in 2..8. With our integer levels and the bf16 scale.
double LloydMaxDistortion(int bits, int head_dim);

}  // namespace tersekv
