// SPDX-License-Identifier: Apache-2.0
// KIVI (Liu et al. 2024): keys affine by channel within a page of tokens, values affine by token within a group of
// channels. Code q of x: rint((x - z) / s) clipped to 0..2^b - 1, with s = (max - min) / (2^b - 1) and z = min as they
// are stored, in fp16; s = 0: q = 0. It decodes to z + s q. Bits 2 to 8.
//
// Page record of keys:  codes [page_tokens][d], b bits each, a token in d * b / 8 bytes | scales [d] | zeros [d]
// Record of values:     codes [d] | scales [groups] | zeros [groups]; the last group may be short
// Codes in canonical bit order (src/bits/pack.h), scales and zeros fp16. Keys lie token by token, so that a range of
// tokens decodes without the rest of the page and loops run over channels.
#pragma once

#include <cstddef>

#include "src/codec/record.h"

namespace tersekv {

inline size_t KiviRowBytes(const RecordShape& shape) {  // codes of one token
  return static_cast<size_t>(shape.d) * static_cast<size_t>(shape.bits) / 8;
}

struct KiviKeys {
  static constexpr Family kFamily = Family::kKivi;
  static constexpr bool kUnitVariance = false;
  static constexpr bool kPage = true;
  static constexpr int kBlock = 8;
  static size_t ScalesOffset(const RecordShape& shape) {
    return static_cast<size_t>(shape.page_tokens) * KiviRowBytes(shape);
  }
  static size_t Bytes(const RecordShape& shape) { return ScalesOffset(shape) + 4 * static_cast<size_t>(shape.d); }
  static size_t ScratchBytes(const RecordShape&) { return 0; }
};

struct KiviValues {
  static constexpr Family kFamily = Family::kKivi;
  static constexpr bool kUnitVariance = false;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 8;
  static int Group(const RecordShape& shape) {
    return shape.group == 0 || shape.group > shape.d ? shape.d : shape.group;
  }
  static int Groups(const RecordShape& shape) { return (shape.d + Group(shape) - 1) / Group(shape); }
  static size_t Bytes(const RecordShape& shape) { return KiviRowBytes(shape) + 4 * static_cast<size_t>(Groups(shape)); }
  static size_t ScratchBytes(const RecordShape& shape) { return static_cast<size_t>(shape.d); }  // codes
};

static_assert(RecordTag<KiviKeys> && RecordTag<KiviValues>);

}  // namespace tersekv
