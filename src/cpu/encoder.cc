// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/encoder.h"

#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/codec/lloyd_max.h"
#include "src/cpu/records.h"
#include "src/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/encoder.cc"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"
#include "src/cpu/hwy_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE HWY_NAMESPACE
#include "src/codec/encode-inl.h"

namespace tersekv {
namespace HWY_NAMESPACE {

// rows [n, d] -> x [d, Count()]; lanes without a row repeat the first, so that they can't fail on their own.
void Transpose(const float* rows, size_t n, int d, size_t count, float* x) {
  for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
    for (size_t i = 0; i < count; ++i) x[c * count + i] = rows[(i < n ? i : 0) * static_cast<size_t>(d) + c];
  }
}

template <class L>
bool EncodeAll(L lanes, const HeadCodec& codec, const float* rows, size_t n, uint8_t* codes, uint16_t* scales,
               float* scratch) {
  const size_t count = lanes.Count();
  const size_t d = static_cast<size_t>(codec.d);
  float* x = scratch;
  float* rest = x + d * count;
  uint8_t block_codes[16 * 1024];
  uint16_t block_scales[16];
  for (size_t i = 0; i < n; i += count) {
    const size_t block = n - i < count ? n - i : count;
    Transpose(rows + i * d, block, codec.d, count, x);
    if (!EncodeLanes(lanes, codec, x, block_codes, block_scales, rest, block)) return false;
    for (size_t j = 0; j < block * d; ++j) codes[i * d + j] = block_codes[j];
    for (size_t j = 0; j < block; ++j) scales[i + j] = block_scales[j];
  }
  return true;
}

bool Encode(const HeadCodec& codec, const float* rows, size_t n, uint8_t* codes, uint16_t* scales, float* scratch) {
  return EncodeAll(HwyLanes(), codec, rows, n, codes, scales, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE scalar
#include "src/codec/encode-inl.h"

namespace tersekv {
namespace {

HWY_EXPORT(Encode);
constexpr size_t kMaxLanes = 16;

class SimdEncoder : public Encoder {
 public:
  SimdEncoder() { ChooseSimdTarget(); }
  bool Encode(const HeadCodec& codec, const float* rows, size_t n, uint8_t* codes, uint16_t* scales,
              float* scratch) const override {
    return HWY_DYNAMIC_DISPATCH(Encode)(codec, rows, n, codes, scales, scratch);
  }
  size_t ScratchFloats(int d) const override {
    return EncodeScratchFloats(d, kMaxLanes) + static_cast<size_t>(d) * kMaxLanes;
  }
  bool EncodeRecords(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records,
                     float* scratch) const override {
    return EncodeRecordsSimd(codec, rows, n, records, scratch);
  }
  void DecodeRecords(const HeadCodec& codec, const uint8_t* records, size_t begin, size_t end,
                     float* rows) const override {
    DecodeRecordsSimd(codec.family, codec.side, codec.record, records, begin, end, rows);
  }
};

class ScalarEncoder : public Encoder {
 public:
  bool Encode(const HeadCodec& codec, const float* rows, size_t n, uint8_t* codes, uint16_t* scales,
              float* scratch) const override {
    const size_t d = static_cast<size_t>(codec.d);
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < d; ++c) scratch[c] = rows[i * d + c];
      if (!scalar::EncodeLanes(ScalarLanes(), codec, scratch, codes + i * d, scales + i, scratch + d)) return false;
    }
    return true;
  }
  size_t ScratchFloats(int d) const override { return EncodeScratchFloats(d, 1) + static_cast<size_t>(d); }
  bool EncodeRecords(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records,
                     float* scratch) const override {
    return EncodeRecordsPlain(codec, rows, n, records, scratch);
  }
  void DecodeRecords(const HeadCodec& codec, const uint8_t* records, size_t begin, size_t end,
                     float* rows) const override {
    DecodeRecordsPlain(codec.family, codec.side, codec.record, records, begin, end, rows);
  }
};

}  // namespace

std::unique_ptr<const Encoder> MakeSimdEncoder() { return std::make_unique<SimdEncoder>(); }
std::unique_ptr<const Encoder> MakeScalarEncoder() { return std::make_unique<ScalarEncoder>(); }

}  // namespace tersekv
#endif  // HWY_ONCE
