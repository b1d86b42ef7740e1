// SPDX-License-Identifier: Apache-2.0
#include "src/codec/kivi.h"

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
#include "src/bits/pack.h"
#include "src/bits/row_codes.h"
#include "tests/reference/plain_records.h"
#include "tests/reference/rows.h"

#define TERSEKV_INL_NAMESPACE kivi_plain
#include "src/codec/kivi-inl.h"

namespace tersekv {
namespace {

RecordShape Shape(int d, int bits, int group = 0, int page_tokens = 128) {
  return {.d = d, .bits = static_cast<float>(bits), .group = group, .page_tokens = page_tokens};
}

std::vector<uint8_t> Page(const RecordShape& shape, const std::vector<float>& rows) {
  std::vector<uint8_t> record(KiviKeys::Bytes(shape) + 1, 0xcc);
  kivi_plain::EncodePage(KiviKeys(), shape, rows.data(), record.data());
  EXPECT_EQ(record.back(), 0xcc);
  record.pop_back();
  return record;
}

std::vector<uint8_t> Value(const RecordShape& shape, const float* y) {
  std::vector<uint8_t> record(KiviValues::Bytes(shape) + 1, 0xcc);
  std::vector<std::byte> scratch(KiviValues::ScratchBytes(shape));
  kivi_plain::EncodeRecord(KiviValues(), shape, {.y = y, .scratch = scratch.data()}, record.data());
  EXPECT_EQ(record.back(), 0xcc);
  record.pop_back();
  return record;
}

double Nmse(const std::vector<float>& x, const std::vector<float>& back) {
  double error = 0, power = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i] - back[i]), 2);
    power += std::pow(static_cast<double>(x[i]), 2);
  }
  return error / power;
}

TEST(RowCodes, PackAndUnpackAsTheCanonicalPacking) {
  reference::Random random(3);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const size_t n : {8, 64, 200}) {
      std::vector<uint8_t> codes(n), packed(PackedBytes(n, bits)), expected(packed), back(n);
      std::vector<float> floats(n);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(random.Below(size_t{1} << bits));
      PackBits(codes.data(), n, bits, expected.data());
      WithBits(bits, [&](auto b) {
        PackRow<decltype(b)::value>(codes.data(), n, packed.data());
        UnpackRow<decltype(b)::value>(packed.data(), n, back.data());
        UnpackRow<decltype(b)::value>(packed.data(), n, floats.data());
      });
      EXPECT_EQ(packed, expected) << bits;
      EXPECT_EQ(back, codes) << bits;
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(floats[i], static_cast<float>(codes[i]));
    }
  }
}

// fp16 bytes of one head over what its K and V records take, for a prompt of 5230 tokens: whole pages of 128 are packed
// once 128 newer tokens are there, the other 238 tokens stay fp16. Published with two decimals.
TEST(Kivi, PublishedRatios) {
  const struct {
    int k, v, group, d;
    double ratio;
  } rows[] = {{4, 4, 0, 128, 3.34}, {4, 3, 0, 128, 3.71}, {3, 3, 0, 128, 4.18}, {3, 2, 32, 128, 4.31},
              {4, 4, 0, 64, 3.26},  {4, 3, 0, 64, 3.61},  {3, 3, 0, 64, 4.05},  {3, 2, 32, 64, 4.31}};
  constexpr int kPrompt = 5230, kPacked = (kPrompt - 128) / 128 * 128;
  static_assert(kPrompt - kPacked == 238);
  for (const auto& row : rows) {
    const double pages = kPacked / 128 * static_cast<double>(KiviKeys::Bytes(Shape(row.d, row.k)));
    const double values = kPacked * static_cast<double>(KiviValues::Bytes(Shape(row.d, row.v, row.group)));
    const double raw = 2.0 * 2 * row.d;  // of a token, fp16
    const double ratio = kPrompt * raw / (pages + values + (kPrompt - kPacked) * raw);
    EXPECT_EQ(std::lround(ratio * 100), std::lround(row.ratio * 100)) << row.k << row.v << " " << row.d;
    RecordProperty("ratio_k" + std::to_string(row.k) + "v" + std::to_string(row.v) + "_" + std::to_string(row.d),
                   std::to_string(ratio));
  }
}

TEST(Kivi, RecordBytes) {
  EXPECT_EQ(KiviKeys::Bytes(Shape(128, 4)), 128U * 68);
  EXPECT_EQ(KiviKeys::Bytes(Shape(64, 3)), 128U * 26);
  EXPECT_EQ(KiviKeys::Bytes(Shape(80, 2, 0, 64)), 64U * 20 + 4 * 80);
  EXPECT_EQ(KiviValues::Bytes(Shape(128, 2, 32)), 48U);
  EXPECT_EQ(KiviValues::Bytes(Shape(64, 3)), 28U);
  EXPECT_EQ(KiviValues::Bytes(Shape(80, 2, 32)), 32U);   // groups of 32, 32 and 16
  EXPECT_EQ(KiviValues::Bytes(Shape(64, 2, 128)), 20U);  // one group
}

TEST(Kivi, BytesAreTheReferences) {
  uint64_t seed = 1;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int dim : {8, 64, 80, 128, 576}) {
      const size_t d = static_cast<size_t>(dim);
      for (const float factor : {1.0f, 1e-4f, 3e4f, 1e30f}) {
        std::vector<float> rows = reference::GaussianRows(++seed, 64, dim);
        for (float& v : rows) v *= factor;
        for (size_t t = 0; t < 64; ++t) rows[t * d + 3] = -0.0f, rows[t * d + 4] = 7;  // channels of one value
        EXPECT_EQ(Page(Shape(dim, bits, 0, 64), rows), reference::PlainKiviPage(rows, d, bits)) << bits << " " << dim;
        for (const int group : {0, 16, 32}) {
          const size_t channels = static_cast<size_t>(KiviValues::Group(Shape(dim, bits, group)));
          for (size_t t = 0; t < 8; ++t) {
            ASSERT_EQ(Value(Shape(dim, bits, group), &rows[t * d]),
                      reference::PlainKiviValue(&rows[t * d], d, channels, bits));
          }
        }
      }
    }
  }
}

// x = 0, 1, 2, 3 and so on in 2 bits: scale and zero are exact, halves round to even.
TEST(Kivi, GoldenBytes) {
  const std::vector<float> row = {0, 1, 2, 3, .5f, 1.5f, 2.5f, 3};
  const std::vector<uint8_t> expected = {0xe4, 0xe8, 0x00, 0x3c, 0x00, 0x00};  // 0 1 2 3, 0 2 2 3, 1.0, 0.0
  EXPECT_EQ(Value(Shape(8, 2), row.data()), expected);
  std::vector<float> page;  // the same channel by channel: token t holds row[t] + c
  for (size_t t = 0; t < 8; ++t) {
    for (size_t c = 0; c < 8; ++c) page.push_back(row[t] + static_cast<float>(c));
  }
  const std::vector<uint8_t> codes = {0x00, 0x00, 0x55, 0x55, 0xaa, 0xaa, 0xff, 0xff,
                                      0x00, 0x00, 0xaa, 0xaa, 0xaa, 0xaa, 0xff, 0xff};
  std::vector<uint8_t> golden = codes;
  for (int c = 0; c < 8; ++c) reference::AppendHalf(0x3c00, &golden);
  for (int c = 0; c < 8; ++c) reference::AppendHalf(F32ToF16(static_cast<float>(c)), &golden);
  EXPECT_EQ(Page(Shape(8, 2, 0, 8), page), golden);
}

TEST(Kivi, ConstantAndExtremeRows) {
  for (const float v : {0.0f, -3.0f, 1e-9f, 65504.0f, 1e30f, -3e38f}) {
    const std::vector<float> row(64, v);
    const RecordShape shape = Shape(64, 4);
    const std::vector<uint8_t> record = Value(shape, row.data());
    std::vector<float> back(64, NAN);
    kivi_plain::DecodeRecord(KiviValues(), shape, record.data(), back.data());
    for (const float b : back) EXPECT_EQ(b, F16ToF32(F32ToF16(std::clamp(v, -65504.0f, 65504.0f)))) << v;
  }
  std::vector<float> row(64, -3e38f);
  row[5] = 3e38f;  // max - min overflows
  std::vector<float> back(64, NAN);
  kivi_plain::DecodeRecord(KiviValues(), Shape(64, 4), Value(Shape(64, 4), row.data()).data(), back.data());
  for (const float b : back) EXPECT_TRUE(std::isfinite(b));
}

// Published for rotated Gaussian rows (one scale for 128 values): .00995, .0458, .2506 at 4, 3, 2 bits.
TEST(Kivi, ErrorOfGaussianRows) {
  const double published[] = {.2506, .0458, .00995};
  for (int bits = 2; bits <= 8; ++bits) {
    const RecordShape shape = Shape(128, bits);
    double keys = 0, values = 0;
    for (uint64_t page = 0; page < 20; ++page) {
      const std::vector<float> rows = reference::GaussianRows(100 + page, 128, 128);
      std::vector<float> back(rows.size(), NAN);
      const std::vector<uint8_t> record = Page(shape, rows);
      kivi_plain::DecodePage(KiviKeys(), shape, record.data(), 0, 128, back.data());
      keys += Nmse(rows, back) / 20;
      std::vector<float> part(rows.size(), NAN);  // any range of tokens decodes by itself
      kivi_plain::DecodePage(KiviKeys(), shape, record.data(), 37, 101, part.data());
      ASSERT_TRUE(std::equal(&part[0], &part[64 * 128], &back[37 * 128]));
      for (size_t t = 0; t < 128; ++t) {
        kivi_plain::DecodeRecord(KiviValues(), shape, Value(shape, &rows[t * 128]).data(), &back[t * 128]);
      }
      values += Nmse(rows, back) / 20;
    }
    RecordProperty("keys_" + std::to_string(bits), std::to_string(keys));
    RecordProperty("values_" + std::to_string(bits), std::to_string(values));
    EXPECT_NEAR(values / keys, 1, 0.02) << bits;
    if (bits <= 4) {
      EXPECT_NEAR(keys / published[bits - 2], 1, 0.01) << bits;
    } else {
      EXPECT_NEAR(keys / (published[2] * std::pow(15.0 / ((1 << bits) - 1), 2)), 1, 0.03) << bits;  // a step squared
    }
  }
}

}  // namespace
}  // namespace tersekv
