// SPDX-License-Identifier: Apache-2.0
// Trellis and 2-D VQ: records and what they decode to are the same bytes on every SIMD target and in plain code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/bits/pack.h"
#include "src/codec/trellis.h"
#include "src/codec/vq2.h"
#include "tests/reference/record_rows.h"
#include "tests/reference/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/codec/record_targets_test.cc"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE HWY_NAMESPACE
#include "src/codec/trellis-inl.h"
#include "src/codec/vq2-inl.h"

namespace tersekv {
namespace HWY_NAMESPACE {

void EncodeTrellis(const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  EncodeRecord(Trellis(), shape, row, record);
}
void DecodeTrellis(const RecordShape& shape, const uint8_t* record, float* y) {
  DecodeRecord(Trellis(), shape, record, y);
}
void EncodeVq2(const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  EncodeRecord(Vq2(), shape, row, record);
}
void DecodeVq2(const RecordShape& shape, const uint8_t* record, float* y) { DecodeRecord(Vq2(), shape, record, y); }

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/trellis-inl.h"
#include "src/codec/vq2-inl.h"

namespace tersekv {
namespace {

HWY_EXPORT(EncodeTrellis);
HWY_EXPORT(DecodeTrellis);
HWY_EXPORT(EncodeVq2);
HWY_EXPORT(DecodeVq2);

struct TrellisOn {
  using Tag = Trellis;
  static constexpr float kWidths[] = {2, 3, 4};
  static void Encode(const RecordShape& shape, const RecordRow& row, uint8_t* record) {
    HWY_DYNAMIC_DISPATCH(EncodeTrellis)(shape, row, record);
  }
  static void Decode(const RecordShape& shape, const uint8_t* record, float* y) {
    HWY_DYNAMIC_DISPATCH(DecodeTrellis)(shape, record, y);
  }
};
struct Vq2On {
  using Tag = Vq2;
  static constexpr float kWidths[] = {2, 2.5f, 3, 3.5f, 4};
  static void Encode(const RecordShape& shape, const RecordRow& row, uint8_t* record) {
    HWY_DYNAMIC_DISPATCH(EncodeVq2)(shape, row, record);
  }
  static void Decode(const RecordShape& shape, const uint8_t* record, float* y) {
    HWY_DYNAMIC_DISPATCH(DecodeVq2)(shape, record, y);
  }
};

template <class On>
void ExpectSameOnAllTargets(size_t values) {
  using Tag = typename On::Tag;
  for (const float bits : On::kWidths) {
    for (const int dim : {64, 80, 128}) {
      RecordShape shape;
      shape.d = dim;
      shape.bits = bits;
      shape.norm = NormMode::kUnbiased;
      const size_t d = static_cast<size_t>(dim), n = values / d;
      std::vector<float> rows = reference::GaussianRows(51, n, dim);
      for (size_t i = 0; i < rows.size() / 8; ++i) rows[i] = std::nearbyint(rows[i]);  // ties
      const auto coder = [&](auto encode, auto decode) {
        return reference::RecordCoder(shape, Tag::Bytes(shape), Tag::ScratchBytes(shape), encode, decode);
      };
      auto plain_coder = coder(
          [](const RecordShape& s, const RecordRow& row, uint8_t* out) { plain::EncodeRecord(Tag(), s, row, out); },
          [](const RecordShape& s, const uint8_t* in, float* y) { plain::DecodeRecord(Tag(), s, in, y); });
      std::vector<std::vector<uint8_t>> records;
      for (size_t i = 0; i < n; ++i) records.push_back(plain_coder.Code(&rows[i * d]));
      for (int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
        hwy::SetSupportedTargetsForTest(targets & -targets);
        hwy::GetChosenTarget().DeInit();
        auto target_coder = coder(On::Encode, On::Decode);
        for (size_t i = 0; i < n; ++i) {
          const std::vector<uint8_t> record = target_coder.Code(&rows[i * d]);
          ASSERT_EQ(record, records[i]) << hwy::TargetName(targets & -targets) << " " << bits << " " << dim;
          const std::vector<float> y = target_coder.Read(record), expected = plain_coder.Read(record);
          ASSERT_EQ(std::memcmp(y.data(), expected.data(), d * sizeof(float)), 0);
        }
      }
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().DeInit();
    }
  }
}

TEST(RecordTargets, TrellisIsTheSameBytes) { ExpectSameOnAllTargets<TrellisOn>(size_t{1} << 16); }
TEST(RecordTargets, Vq2IsTheSameBytes) { ExpectSameOnAllTargets<Vq2On>(size_t{1} << 18); }

}  // namespace
}  // namespace tersekv
#endif  // HWY_ONCE
