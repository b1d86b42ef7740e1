// SPDX-License-Identifier: Apache-2.0
// Four-bit floats (E2M1) in blocks with a small scale each: OCP MXFP4 (Microscaling Formats 1.0) and NVFP4.
//
// Record: d/2 bytes of codes, channel 2i in the low nibble of byte i and 2i + 1 in the high one, then the scale of each
// block, one byte. A value decodes to code * scale. Encoding and decoding: fp4-inl.h.
//   Mxfp4  32 channels, E8M0, the exponent of the OCP rule floor(log2 max|y|) - 2; values above 6 scales saturate
//   Nvfp4  16 channels, E4M3 of max|y| / 6 or max|y| / 4, whichever has the smaller sum of squared errors, the first
//          when they are equal. The format's scale a tensor is 1: block scales span 2^-9 to 448
#pragma once

#include <cstddef>

#include "src/base/e2m1.h"
#include "src/base/e4m3.h"
#include "src/base/e8m0.h"
#include "src/codec/record.h"

namespace tersekv {

template <Family kWhich, int kChannels>
struct Fp4Tag {
  static constexpr Family kFamily = kWhich;
  static constexpr bool kUnitVariance = false;
  static constexpr bool kPage = false;
  static constexpr int kBlock = kChannels;
  static constexpr size_t Bytes(const RecordShape& shape) {
    return static_cast<size_t>(shape.d) / 2 + static_cast<size_t>(shape.d) / kBlock;
  }
  static constexpr size_t ScratchBytes(const RecordShape&) { return 0; }
};

using Mxfp4 = Fp4Tag<Family::kMxfp4, 32>;
using Nvfp4 = Fp4Tag<Family::kNvfp4, 16>;
static_assert(RecordTag<Mxfp4> && RecordTag<Nvfp4>);

}  // namespace tersekv
