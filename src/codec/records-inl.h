// SPDX-License-Identifier: Apache-2.0
// Rows -> records and back for every tag of record_list.h: what surrounds a codec's own mathematics. No include guard:
// compiled once per SIMD target, into the namespace that the includer names in TERSEKV_INL_NAMESPACE; the includer has
// included half.h, lanes.h, head_codec.h, lloyd_max.h and record_list.h.

#include "src/codec/encode-inl.h"
#include "src/codec/fp4-inl.h"
#include "src/codec/fp8-inl.h"
#include "src/codec/ggml_blocks-inl.h"
#include "src/codec/integer_levels-inl.h"
#include "src/codec/kivi-inl.h"
#include "src/codec/prod-inl.h"
#include "src/codec/trellis-inl.h"
#include "src/codec/vq2-inl.h"

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// x: [d] a row, becomes what the tag encodes; rest: [d + 32] scratch. False: not finite, or its norm overflows.
template <class Tag>
bool PrepareRow(Tag, const HeadCodec& codec, float* x, float* rest, RecordRow* row) {
  const ScalarLanes lanes;
  const int d = codec.d;
  Normalise(lanes, codec, x);
  row->s2 = TreeSum(lanes, d, rest + d, [x](size_t at) { return x[at] * x[at]; });
  if (!(row->s2 <= 0x1.fffffep127f)) return false;
  row->s = std::sqrt(row->s2);
  row->sqrt_d = codec.sqrt_d;
  row->y = x;
  if (codec.rotation->kind() == RotationKind::kNone && !Tag::kUnitVariance) return true;
  RotateForward(lanes, *codec.rotation, x, rest);
  if (Tag::kUnitVariance) return true;
  const float inverse = 1.0f / codec.sqrt_d;
  for (int c = 0; c < d; ++c) x[c] *= inverse;
  return true;
}

// rows: [n, d]; records: n records, or one when the tag's record holds a page (then n = page_tokens). scratch:
// RecordScratchFloats(codec).
inline bool EncodeRecords(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records, float* scratch) {
  bool finite = true;
  const size_t d = static_cast<size_t>(codec.d);
  WithRecordTag(codec.family, codec.side, [&](auto tag) {
    float* x = scratch;
    float* rest = x + (tag.kPage ? n : 1) * d;
    RecordRow row;
    row.scratch = AlignScratch(rest + d + 32);
    for (size_t t = 0; t < n && finite; ++t) {
      float* at = x + (tag.kPage ? t : 0) * d;
      for (size_t c = 0; c < d; ++c) at[c] = rows[t * d + c];
      finite = PrepareRow(tag, codec, at, rest, &row);
      if constexpr (!tag.kPage) {
        uint8_t* record = records + t * tag.Bytes(codec.record);
        if (finite) EncodeRecord(tag, codec.record, row, record);
        if constexpr (requires { IsFiniteRecord(tag, codec.record, record); }) {
          finite = finite && IsFiniteRecord(tag, codec.record, record);
        }
      }
    }
    if constexpr (tag.kPage) {
      if (finite) EncodePage(tag, codec.record, x, records);
    }
  });
  return finite;
}

// Tokens [begin, end) of the records of a page -> rows [end - begin, d] of R x'.
inline void DecodeRecords(Family family, Kv side, const RecordShape& shape, const uint8_t* records, size_t begin,
                          size_t end, float* rows) {
  WithRecordTag(family, side, [&](auto tag) {
    if constexpr (tag.kPage) {
      DecodePage(tag, shape, records, begin, end, rows);
    } else {
      const size_t bytes = tag.Bytes(shape), d = static_cast<size_t>(shape.d);
      for (size_t t = begin; t < end; ++t) DecodeRecord(tag, shape, records + t * bytes, rows + (t - begin) * d);
    }
  });
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
