// SPDX-License-Identifier: Apache-2.0
// How the cache has rows encoded, and decoded again, without knowing on which machine.
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

  // For record codecs: rows [n, d] -> n records, or the record of a page of n tokens. scratch: RecordScratchFloats.
  virtual bool EncodeRecords(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records,
                             float* scratch) const = 0;
  // Tokens [begin, end) of the records of a page -> rows of R x' (src/codec/record.h).
  virtual void DecodeRecords(const HeadCodec& codec, const uint8_t* records, size_t begin, size_t end,
                             float* rows) const = 0;
};

}  // namespace tersekv
