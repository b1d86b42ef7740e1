// SPDX-License-Identifier: Apache-2.0
// FP8 as caches of inference engines store it: E4M3 (fn) with a scale a vector that takes the largest value to 448.
//
// Record: [d] codes, then the scale as fp32. It decodes to code * scale. Encoding and decoding: fp8-inl.h.
#pragma once

#include <cstddef>

#include "src/base/e4m3.h"
#include "src/codec/record.h"

namespace tersekv {

struct Fp8 {
  static constexpr Family kFamily = Family::kFp8;
  static constexpr bool kUnitVariance = false;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 1;
  static constexpr size_t Bytes(const RecordShape& shape) { return static_cast<size_t>(shape.d) + 4; }
  static constexpr size_t ScratchBytes(const RecordShape&) { return 0; }
};
static_assert(RecordTag<Fp8>);

}  // namespace tersekv
