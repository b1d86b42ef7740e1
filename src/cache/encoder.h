// SPDX-License-Identifier: Apache-2.0
// How the cache has rows encoded without knowing on which machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/codec/head_codec.h"

namespace tersekv {

class Encoder {
 public:
  virtual ~Encoder() = default;
  // rows: [n, d] fp32; codes: [n, d]; scales: [n] bf16. scratch: ScratchFloats(d). False: a row is not finite.
  // Thread-safe with separate scratch.
  virtual bool Encode(const HeadCodec& codec, const float* rows, size_t n, uint8_t* codes, uint16_t* scales,
                      float* scratch) const = 0;
  virtual size_t ScratchFloats(int d) const = 0;
};

}  // namespace tersekv
