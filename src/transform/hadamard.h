// SPDX-License-Identifier: Apache-2.0
// Orders of the Hadamard transform, and the plain transform of one row.
#pragma once

namespace tersekv {

// Orders this version transforms: powers of two (Sylvester). Paley x Sylvester orders (12, 20, 28, 36 times a power of
// two) join here: index = outer * 2^k + inner, Paley outer, Sylvester inner.
constexpr bool HadamardOrderSupported(int d) { return d >= 8 && d <= 1024 && (d & (d - 1)) == 0; }

// y: [d] in place, unnormalised: H y.
void HadamardRow(float* y, int d);

}  // namespace tersekv
