// SPDX-License-Identifier: Apache-2.0
// FP8 as caches of inference engines store it: E4M3 (fn). Encoding and decoding: fp8-inl.h.
//
// fp8: a scale a vector that takes the largest value to 448. Record: [d] codes, then the scale as fp32. It decodes to
// code * scale.
//
// fp8-head, fp8-tensor: one scale a KV head, or a layer and side. Record: [d] codes; it decodes to the codes' values.
// The scale is a factor of the channel scale that rows are divided by before (SharedScaleOf, row_statistics.h), and
// what lies beyond 448 of it saturates.
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

template <Family family>
struct Fp8Codes {
  static constexpr Family kFamily = family;
  static constexpr bool kUnitVariance = false;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 1;
  static constexpr size_t Bytes(const RecordShape& shape) { return static_cast<size_t>(shape.d); }
  static constexpr size_t ScratchBytes(const RecordShape&) { return 0; }
};
using Fp8Head = Fp8Codes<Family::kFp8Head>;
using Fp8Tensor = Fp8Codes<Family::kFp8Tensor>;
static_assert(RecordTag<Fp8Head> && RecordTag<Fp8Tensor>);

}  // namespace tersekv
