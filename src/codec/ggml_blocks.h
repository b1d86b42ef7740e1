// SPDX-License-Identifier: Apache-2.0
// The four block formats of ggml that llama.cpp offers for caches, byte for byte: a record is the blocks of its d / 32
// groups of channels one after another, each a scale g in f16, then its quants; see docs/formats.md. Encoding
// (ggml_blocks-inl.h) writes what ggml's reference quantiser writes for the row, without an importance matrix.
//
//   Q8_0    32 int8 codes                                   g = max|y| / 127           decodes to g * code
//   Q5_0    32 fifth bits, 16 bytes of nibbles              g = extreme / -16          g * (code - 16)
//   Q4_0    16 bytes of nibbles: channel i low, i + 16 high g = extreme / -8           g * (code - 8)
//   Iq4Nl   as Q4_0                                         g of the best of 16 tries  g * kIq4NlLevels[code]
// extreme: the first value whose magnitude is the largest, with its sign.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/codec/record.h"

namespace tersekv {

template <Family kWhich, size_t kBytes>
struct GgmlTag {
  static constexpr Family kFamily = kWhich;
  static constexpr bool kUnitVariance = false;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 32;
  static constexpr size_t kBlockBytes = kBytes;
  static constexpr size_t Bytes(const RecordShape& shape) { return static_cast<size_t>(shape.d) / kBlock * kBytes; }
  static constexpr size_t ScratchBytes(const RecordShape&) { return 0; }
};

using Q8_0 = GgmlTag<Family::kQ8_0, 34>;
using Q5_0 = GgmlTag<Family::kQ5_0, 22>;
using Q4_0 = GgmlTag<Family::kQ4_0, 18>;
using Iq4Nl = GgmlTag<Family::kIq4Nl, 18>;
// Whether all scales of a record are finite: f16 ends at 65504.
template <Family kWhich, size_t kBytes>
bool IsFiniteRecord(GgmlTag<kWhich, kBytes> tag, const RecordShape& shape, const uint8_t* record) {
  for (size_t at = 0; at < tag.Bytes(shape); at += kBytes) {
    if ((record[at + 1] & 0x7c) == 0x7c) return false;  // the exponent of a little-endian f16
  }
  return true;
}

static_assert(RecordTag<Q8_0> && RecordTag<Q5_0> && RecordTag<Q4_0> && RecordTag<Iq4Nl>);

// The levels of IQ4_NL: ggml's table (MIT, see NOTICE).
inline constexpr std::array<int8_t, 16> kIq4NlLevels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                        1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace tersekv
