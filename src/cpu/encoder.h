// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "src/cache/encoder.h"

namespace tersekv {

// Rows in SIMD lanes, on the target of src/cpu/simd.h.
std::unique_ptr<const Encoder> MakeSimdEncoder();

// The same steps, one row at a time: what every target must equal to the byte.
std::unique_ptr<const Encoder> MakeScalarEncoder();

}  // namespace tersekv
