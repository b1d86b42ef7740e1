// SPDX-License-Identifier: Apache-2.0
// KIVI and prod records are the same bytes on every SIMD target and in a reference that shares no arithmetic with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/bits/row_codes.h"
#include "src/codec/head_codec.h"
#include "src/codec/kivi.h"
#include "src/codec/lloyd_max.h"
#include "src/codec/prod.h"
#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/plain_records.h"
#include "tests/reference/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/cpu/record_targets_test.cc"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE HWY_NAMESPACE
#include "src/codec/encode-inl.h"
#include "src/codec/kivi-inl.h"
#include "src/codec/prod-inl.h"

namespace tersekv {
namespace HWY_NAMESPACE {

void KeysPage(const RecordShape& shape, const float* rows, uint8_t* record) {
  EncodePage(KiviKeys(), shape, rows, record);
}
void KeysRows(const RecordShape& shape, const uint8_t* record, float* rows) {
  DecodePage(KiviKeys(), shape, record, 0, static_cast<size_t>(shape.page_tokens), rows);
}
void ValuesRecord(const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  EncodeRecord(KiviValues(), shape, row, record);
}
void ValuesRow(const RecordShape& shape, const uint8_t* record, float* y) {
  DecodeRecord(KiviValues(), shape, record, y);
}
void ProdRecord(const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  EncodeRecord(Prod(), shape, row, record);
}
void ProdRow(const RecordShape& shape, const uint8_t* record, float* y) { DecodeRecord(Prod(), shape, record, y); }

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tersekv {
namespace {

HWY_EXPORT(KeysPage);
HWY_EXPORT(KeysRows);
HWY_EXPORT(ValuesRecord);
HWY_EXPORT(ValuesRow);
HWY_EXPORT(ProdRecord);
HWY_EXPORT(ProdRow);

using Bytes = std::vector<uint8_t>;

class RecordTargets : public testing::Test {
 protected:
  ~RecordTargets() override { ForceSimdTarget(""); }
  const std::vector<std::string> targets_ = SimdTargets();
};

// Values of f16, of wide ranges of exponents, with ties of small integers.
std::vector<float> MixedRows(uint64_t seed, size_t n, int d) {
  std::vector<float> rows = reference::GaussianRows(seed, n, d);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t kind = i / static_cast<size_t>(d) % 4;
    if (kind == 0) rows[i] = F16ToF32(F32ToF16(rows[i]));
    if (kind == 1) rows[i] = std::nearbyint(2.0f * rows[i]);
    if (kind == 2) rows[i] = std::ldexp(rows[i], static_cast<int>(i * 7 % 23) - 11);
  }
  return rows;
}

TEST_F(RecordTargets, Kivi) {
  uint64_t seed = 0;
  for (const int dim : {64, 80, 128}) {
    const size_t d = static_cast<size_t>(dim);
    for (int bits = 2; bits <= 8; ++bits) {
      RecordShape shape = {.d = dim, .bits = static_cast<float>(bits), .group = 32, .page_tokens = 128};
      for (int page = 0; page < 5; ++page) {
        const std::vector<float> rows = MixedRows(++seed, 128, dim);
        const Bytes expected = reference::PlainKiviPage(rows, d, bits);
        std::vector<float> decoded, back(rows.size());
        for (const std::string& target : targets_) {
          ForceSimdTarget(target);
          Bytes record(KiviKeys::Bytes(shape));
          HWY_DYNAMIC_DISPATCH(KeysPage)(shape, rows.data(), record.data());
          ASSERT_EQ(record, expected) << target << " " << dim << " " << bits;
          HWY_DYNAMIC_DISPATCH(KeysRows)(shape, record.data(), back.data());
          if (decoded.empty()) decoded = back;
          ASSERT_EQ(back, decoded) << target;
        }
        std::vector<std::byte> scratch(KiviValues::ScratchBytes(shape));
        for (size_t t = 0; t < 128; ++t) {
          const Bytes value = reference::PlainKiviValue(&rows[t * d], d, 32, bits);
          std::vector<float> first, y(d);
          for (const std::string& target : targets_) {
            ForceSimdTarget(target);
            Bytes record(KiviValues::Bytes(shape));
            HWY_DYNAMIC_DISPATCH(ValuesRecord)
            (shape, {.y = &rows[t * d], .scratch = scratch.data()}, record.data());
            ASSERT_EQ(record, value) << target << " " << dim << " " << bits;
            HWY_DYNAMIC_DISPATCH(ValuesRow)(shape, record.data(), y.data());
            if (first.empty()) first = y;
            ASSERT_EQ(y, first) << target;
          }
        }
      }
    }
  }
}

TEST_F(RecordTargets, Prod) {
  uint64_t seed = 0;
  for (const int dim : {64, 80, 128}) {
    const size_t d = static_cast<size_t>(dim);
    for (const RotationKind kind : {RotationKind::kHadamard, RotationKind::kGaussian}) {
      const RotationOp projection =
          MakeProjection(kind, 7, 0, 0, false, dim,
                         kind == RotationKind::kGaussian ? GaussianMatrix(DerivedSeed(7, kProjection), dim) : nullptr);
      std::vector<float> signs, gaussian;
      if (kind == RotationKind::kHadamard) {
        signs = reference::PlainSigns(reference::PlainMix(7 ^ 0x514a4c), 0, 0, false, dim);
      } else {
        for (size_t i = 0; i < d * d; ++i) gaussian.push_back(projection.matrix()[i % d * d + i / d]);
      }
      for (int bits = 2; bits <= 8; ++bits) {
        const RecordShape shape = {.d = dim, .bits = static_cast<float>(bits), .projection = &projection};
        std::vector<float> scratch(Prod::ScratchBytes(shape) / sizeof(float) + 1);
        const std::vector<float> rows = MixedRows(++seed, 200, dim);
        for (size_t t = 0; t < 200; ++t) {
          const std::vector<float> y(&rows[t * d], &rows[t * d] + d);
          std::vector<float> squares;
          for (const float v : y) squares.push_back(v * v);
          RecordRow row = {.y = y.data(), .s2 = reference::PlainTreeSum(squares) / static_cast<float>(dim)};
          row.s = std::sqrt(row.s2);
          row.sqrt_d = std::sqrt(static_cast<float>(dim));
          row.scratch = reinterpret_cast<std::byte*>(scratch.data());
          const Bytes expected = reference::PlainProd(y, row.s, bits, signs, gaussian);
          std::vector<float> first, back(d);
          for (const std::string& target : targets_) {
            ForceSimdTarget(target);
            Bytes record(Prod::Bytes(shape));
            HWY_DYNAMIC_DISPATCH(ProdRecord)(shape, row, record.data());
            ASSERT_EQ(record, expected) << target << " " << dim << " " << bits << " " << t;
            HWY_DYNAMIC_DISPATCH(ProdRow)(shape, record.data(), back.data());
            if (first.empty()) first = back;
            ASSERT_EQ(back, first) << target;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tersekv
#endif  // HWY_ONCE
