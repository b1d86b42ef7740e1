// SPDX-License-Identifier: Apache-2.0
// Record codecs on the CPU: src/codec/records-inl.h compiled for every SIMD target, and plainly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/codec/head_codec.h"

namespace tersekv {

// On the target of src/cpu/simd.h. See Encoder (src/cache/encoder.h).
bool EncodeRecordsSimd(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records, float* scratch);
void DecodeRecordsSimd(Family family, Kv side, const RecordShape& shape, const uint8_t* records, size_t begin,
                       size_t end, float* rows);

// What every target must equal to the byte.
bool EncodeRecordsPlain(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records, float* scratch);
void DecodeRecordsPlain(Family family, Kv side, const RecordShape& shape, const uint8_t* records, size_t begin,
                        size_t end, float* rows);

}  // namespace tersekv
