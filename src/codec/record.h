// SPDX-License-Identifier: Apache-2.0
// Record codecs: every family that is neither raw nor Lloyd-Max. Such a codec is one pair of files: x.h with a tag type
// that says what a record is, x-inl.h with EncodeRecord and DecodeRecord for that tag, compiled once per SIMD target
// and plainly. record_list.h names the tags. docs/writing_a_codec.md walks through one.
//
// Rows arrive after mean, channel scale and rotation (x' = (x - mean) / scale, R orthogonal), so a codec knows nothing
// of those. Encoding is IEEE operations in a fixed order, so that records are identical on every machine
// (docs/numerics.md); decoding gives values of R x'.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "src/transform/rotation.h"
#include "tersekv/spec.h"

namespace tersekv {

// One side (K or V) of one head.
struct RecordShape {
  int d = 0;
  float bits = 0;       // code bits a value, as in the spec
  int group = 0;        // KIVI values: channels that share scale and zero; 0 = d
  int page_tokens = 0;  // tokens of a page record
  NormMode norm = NormMode::kNone;
  const RotationOp* projection = nullptr;  // prod: S of d x d
};

struct RecordRow {
  const float* y = nullptr;  // [d] R x', or sqrt(d) R x' when the tag's kUnitVariance is set
  float s2 = 0, s = 0;       // |x'|^2 and |x'| before the rotation, in the order of docs/numerics.md; finite
  float sqrt_d = 0;
  std::byte* scratch = nullptr;  // ScratchBytes(shape), 64-byte aligned
};

// What a tag must say. Functions over tags, found by their argument:
//   tokens:  void EncodeRecord(Tag, const RecordShape&, const RecordRow&, uint8_t* record);
//            void DecodeRecord(Tag, const RecordShape&, const uint8_t* record, float* y);          y: [d]
//   pages:   void EncodePage(Tag, const RecordShape&, const float* rows, uint8_t* record);         rows: [page_tokens,
//   d]
//            void DecodePage(Tag, const RecordShape&, const uint8_t* record, size_t begin, size_t end, float* rows);
//                                                                                         rows: of tokens [begin, end)
// A tag whose scale can overflow has bool IsFiniteRecord(Tag, const RecordShape&, const uint8_t* record) too: such a
// row is refused.
template <class T>
concept RecordTag = requires(const RecordShape& shape) {
  { T::kFamily } -> std::convertible_to<Family>;
  { T::kUnitVariance } -> std::convertible_to<bool>;  // which y it wants
  { T::kPage } -> std::convertible_to<bool>;    // a record holds a page of tokens, written at once; else one token
  { T::kBlock } -> std::convertible_to<int>;    // head_dim must be a multiple of it
  { T::Bytes(shape) } -> std::same_as<size_t>;  // of a record
  { T::ScratchBytes(shape) } -> std::same_as<size_t>;  // for encoding one
};

}  // namespace tersekv
