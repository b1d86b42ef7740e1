// SPDX-License-Identifier: Apache-2.0
// ggml's blocks without ggml: against a plain reference and against bytes that ggml wrote. tests/hosts compares with
// the library itself.
#include "src/codec/ggml_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/abs_max.h"
#include "src/base/half.h"
#include "tests/reference/block_rows.h"
#include "tests/reference/record_rows.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/ggml_blocks-inl.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {64, 128, 256};

template <class Tag>
std::vector<uint8_t> Encode(Tag tag, const std::vector<float>& rows, int d) {
  return reference::EncodeRows(tag, rows, d, [](auto&&... a) { plain::EncodeRecord(a...); });
}
template <class Tag>
std::vector<float> Decode(Tag tag, const std::vector<uint8_t>& records, int d) {
  return reference::DecodeRows(tag, records, d, [](auto&&... a) { plain::DecodeRecord(a...); });
}

// The reference works in double precision and rounds each result to fp32, as one IEEE operation would.
float R(double v) { return static_cast<float>(v); }
double Times(float a, float b) { return static_cast<double>(a) * static_cast<double>(b); }
double Over(float a, float b) { return static_cast<double>(a) / static_cast<double>(b); }
float PlusProduct(float sum, float a, float b) {
  return R(static_cast<double>(sum) + static_cast<double>(R(Times(a, b))));
}

struct Block {
  float g = 0;
  int code[32] = {};
};

float ExtremeOf(const float* y) {
  float extreme = 0;
  for (int c = 0; c < 32; ++c) {
    if (std::fabs(y[c]) > std::fabs(extreme)) extreme = y[c];
  }
  return extreme;
}

// Codes of round(y / g) + zero, limited to `last`. Halves go away from zero when `away`, else up.
Block Uniform(const float* y, float g, int zero, int last, bool away) {
  Block block;
  block.g = g;
  const float inverse = g == 0 ? 0.0f : R(Over(1, g));
  for (int c = 0; c < 32; ++c) {
    const float scaled = R(Times(y[c], inverse));
    if (std::isinf(inverse)) continue;
    const float shifted = R(static_cast<double>(scaled) + zero + 0.5);
    block.code[c] =
        away ? static_cast<int>(std::lround(scaled)) : std::min(static_cast<int>(std::floor(shifted)), last);
  }
  return block;
}

// The nearest level; a NaN and what lies between go up.
int NearestLevel(float v) {
  if (std::isnan(v)) return 15;
  int best = 0;
  for (int k = 1; k < 16; ++k) {
    const double x = static_cast<double>(v), to_best = std::fabs(x - kIq4NlLevels[static_cast<size_t>(best)]);
    if (std::fabs(x - kIq4NlLevels[static_cast<size_t>(k)]) <= to_best) best = k;
  }
  return best;
}

Block Searched(const float* y) {
  const float extreme = ExtremeOf(y);
  float g = 0, best = 0;
  bool first = true;
  for (int onto = -127; std::fabs(extreme) >= 1e-15f && onto <= -120; ++onto) {
    const float inverse = first ? R(Over(1, R(Over(extreme, 127)))) : R(Over(static_cast<float>(onto), extreme));
    float cross = 0, power = 0;
    for (int c = 0; c < 32; ++c) {
      const float level = kIq4NlLevels[static_cast<size_t>(NearestLevel(R(Times(y[c], inverse))))];
      const float weighted = R(Times(R(Times(y[c], y[c])), level));
      cross = PlusProduct(cross, weighted, y[c]);
      power = PlusProduct(power, weighted, level);
    }
    if (first || (power > 0 && R(Times(cross, cross)) > R(Times(best, power)))) {
      g = R(Over(cross, power));
      best = R(Times(g, cross));
    }
    if (first) onto = -135;
    first = false;
  }
  Block block;
  block.g = g;
  const float inverse = g != 0 ? R(Over(1, g)) : 0.0f;
  for (int c = 0; c < 32; ++c) block.code[c] = NearestLevel(R(Times(y[c], inverse)));
  return block;
}

Block ReferenceOf(Q8_0, const float* y) { return Uniform(y, R(Over(std::fabs(ExtremeOf(y)), 127)), 0, 127, true); }
Block ReferenceOf(Q5_0, const float* y) { return Uniform(y, R(Over(ExtremeOf(y), -16)), 16, 31, false); }
Block ReferenceOf(Q4_0, const float* y) { return Uniform(y, R(Over(ExtremeOf(y), -8)), 8, 15, false); }
Block ReferenceOf(Iq4Nl, const float* y) { return Searched(y); }

// Bytes and values of a block, from the layout.
void Serialise(const Block& block, Family family, std::vector<uint8_t>* record, std::vector<float>* values) {
  const uint16_t half = std::isnan(block.g) ? 0xfe00 : F32ToF16(block.g);
  const float g = F16ToF32(half);
  record->push_back(static_cast<uint8_t>(half & 255));
  record->push_back(static_cast<uint8_t>(half >> 8));
  for (int byte = 0; byte < 4 && family == Family::kQ5_0; ++byte) {
    int bits = 0;
    for (int i = 0; i < 8; ++i) bits += (block.code[8 * byte + i] / 16) << i;
    record->push_back(static_cast<uint8_t>(bits));
  }
  if (family == Family::kQ8_0) {
    for (const int code : block.code) record->push_back(static_cast<uint8_t>(code));
  } else {
    for (int i = 0; i < 16; ++i) {
      record->push_back(static_cast<uint8_t>(block.code[i] % 16 + block.code[i + 16] % 16 * 16));
    }
  }
  for (const int code : block.code) {
    const int zero = family == Family::kQ8_0 ? 0 : family == Family::kQ5_0 ? 16 : 8;
    const int level = family == Family::kIq4Nl ? kIq4NlLevels[static_cast<size_t>(code)] : code - zero;
    values->push_back(R(Times(static_cast<float>(level), g)));
  }
}

template <class Tag>
class GgmlBlocks : public testing::Test {};
class Names {
 public:
  template <class Tag>
  static std::string GetName(int) {
    return std::string(RowOf(Tag::kFamily).name);
  }
};
using Tags = testing::Types<Q8_0, Q5_0, Q4_0, Iq4Nl>;
TYPED_TEST_SUITE(GgmlBlocks, Tags, Names);

TYPED_TEST(GgmlBlocks, RecordsHaveTheListedSize) {
  for (const int d : kDims) {
    EXPECT_EQ(static_cast<double>(TypeParam::Bytes(reference::ShapeOf(d))),
              reference::ListedBytes(TypeParam::kFamily, d));
  }
}

TYPED_TEST(GgmlBlocks, BytesAndValuesAreTheReferences) {
  for (const int d : kDims) {
    const std::vector<float> rows = reference::BlockRows(static_cast<uint64_t>(d), 2100, d);
    const std::vector<uint8_t> records = Encode(TypeParam(), rows, d);
    const std::vector<float> back = Decode(TypeParam(), records, d);
    constexpr size_t kBytes = TypeParam::kBlockBytes;
    for (size_t b = 0; b < rows.size() / 32; ++b) {
      std::vector<uint8_t> record;
      std::vector<float> values;
      Serialise(ReferenceOf(TypeParam(), &rows[32 * b]), TypeParam::kFamily, &record, &values);
      ASSERT_EQ(record.size(), kBytes);
      ASSERT_EQ(std::memcmp(&records[b * kBytes], record.data(), kBytes), 0) << "block " << b << " of d " << d;
      for (size_t c = 0; c < 32; ++c) {
        const float value = back[32 * b + c];
        ASSERT_TRUE(value == values[c] || (std::isnan(value) && std::isnan(values[c]))) << value << " " << values[c];
      }
    }
  }
}

TYPED_TEST(GgmlBlocks, DistortionOfGaussianRows) {
  constexpr Family kFamily = TypeParam::kFamily;
  const double expected = kFamily == Family::kQ8_0   ? 2.9e-5
                          : kFamily == Family::kQ5_0 ? .00182
                          : kFamily == Family::kQ4_0 ? .00739
                                                     : .00576;
  for (const int d : kDims) {
    const std::vector<float> rows = reference::GaussianRows(static_cast<uint64_t>(d), (1u << 18) / d, d);
    const double nmse = reference::Nmse(rows, Decode(TypeParam(), Encode(TypeParam(), rows, d), d));
    std::printf("%s, d %d: NMSE %.4g\n", RowOf(kFamily).name.data(), d, nmse);
    EXPECT_NEAR(nmse / expected, 1, 0.03) << d << ": " << nmse;
  }
}

// What ggml 0.25.3 wrote and read: one block, and hashes over many.
TYPED_TEST(GgmlBlocks, GoldenRecords) {
  struct Golden {
    Family family;
    uint64_t records, values;
    std::vector<uint8_t> block;
  };
  const Golden all[] = {
      {Family::kQ8_0, 0xcc917b437ed0cf90u, 0x421d24fc61000feau, {0x08, 0x28, 0xad, 0x40, 0xd4, 0x67, 0xfc, 0x91, 0x24,
                                                                 0xb9, 0x4b, 0xe0, 0x73, 0x08, 0x9d, 0x30, 0xc4, 0x57,
                                                                 0xec, 0x81, 0x14, 0xa9, 0x3c, 0xd0, 0x63, 0xf8, 0x8d,
                                                                 0x20, 0xb5, 0x47, 0xdc, 0x6f, 0x04, 0x99}},
      {Family::kQ5_0, 0x5c8d5c453a873c0cu, 0x4c67d309c0a73f2bu, {0x00, 0x34, 0x5a, 0xad, 0x54, 0x6a, 0xe6, 0x08,
                                                                 0x3b, 0x5d, 0x80, 0xa2, 0xd5, 0xf7, 0x2a, 0x4c,
                                                                 0x7f, 0x91, 0xc4, 0xe6, 0x19, 0x3b}},
      {Family::kQ4_0,
       0x65a92c2c49d2cda6u,
       0x062b72424a9b168cu,
       {0x00, 0x38, 0x73, 0x0c, 0x95, 0x3f, 0xc8, 0x51, 0xea, 0x84, 0x1d, 0xa6, 0x3f, 0xd9, 0x62, 0xfb, 0x84, 0x2e}},
      {Family::kIq4Nl,
       0x3aa1c557b11e538au,
       0x9e2e7490c68b262bu,
       {0x13, 0x28, 0x62, 0x0d, 0xa4, 0x2f, 0xc8, 0x41, 0xeb, 0x73, 0x1d, 0xa5, 0x2f, 0xd9, 0x51, 0xfc, 0x83, 0x1e}}};
  for (const Golden& golden : all) {
    if (golden.family != TypeParam::kFamily) continue;
    std::vector<float> row(32);
    for (int c = 0; c < 32; ++c) row[static_cast<size_t>(c)] = static_cast<float>((c * 37 + 11) % 64) * 0.125f - 4.0f;
    EXPECT_EQ(Encode(TypeParam(), row, 32), golden.block);
    const std::vector<uint8_t> records = Encode(TypeParam(), reference::IntegerRows(1, 4096, 128), 128);
    EXPECT_EQ(reference::HashOf(records), golden.records);
    const std::vector<float> back = Decode(TypeParam(), records, 128);
    std::vector<uint8_t> bytes(back.size() * sizeof(float));
    std::memcpy(bytes.data(), back.data(), bytes.size());
    EXPECT_EQ(reference::HashOf(bytes), golden.values);
  }
}

// Rows of zeros, of what f16 scales lose, and the largest values that f16 scales hold.
TYPED_TEST(GgmlBlocks, OddRows) {
  for (const float value : {0.0f, -0.0f, 1e-45f, -1e-40f, 1e-30f}) {
    const std::vector<float> back = Decode(TypeParam(), Encode(TypeParam(), std::vector<float>(64, value), 64), 64);
    EXPECT_EQ(back, std::vector<float>(64, 0.0f)) << value;
  }
  for (const float value : {1e-2f, 1.0f, 65504.0f, 5e5f}) {
    std::vector<float> rows(64);
    for (size_t c = 0; c < 64; ++c) rows[c] = c % 3 == 0 ? value : -value;
    EXPECT_LT(reference::Nmse(rows, Decode(TypeParam(), Encode(TypeParam(), rows, 64), 64)), 0.02) << value;
  }
}

// Every code under a scale of 1 is a value with that code.
TEST(GgmlBlockCodes, EveryCodeDecodes) {
  std::vector<uint8_t> q8(2 + 32), q5(2 + 4 + 16), nibbles(2 + 16);
  q8[1] = q5[1] = nibbles[1] = 0x3c;
  for (int code = 0; code < 256; ++code) {
    for (int c = 0; c < 32; ++c) q8[static_cast<size_t>(c) + 2] = static_cast<uint8_t>(code);
    EXPECT_EQ(Decode(Q8_0(), q8, 32), std::vector<float>(32, static_cast<float>(static_cast<int8_t>(code))));
    for (size_t i = 0; i < 16; ++i) nibbles[i + 2] = q5[i + 6] = static_cast<uint8_t>(code);
    for (int fifth = 0; fifth < 2; ++fifth) {
      for (size_t i = 2; i < 6; ++i) q5[i] = fifth == 0 ? 0 : 0xff;
      const std::vector<float> five = Decode(Q5_0(), q5, 32);
      EXPECT_EQ(five[3], static_cast<float>(code % 16 + 16 * fifth - 16));
      EXPECT_EQ(five[19], static_cast<float>(code / 16 + 16 * fifth - 16));
    }
    const std::vector<float> four = Decode(Q4_0(), nibbles, 32), levels = Decode(Iq4Nl(), nibbles, 32);
    EXPECT_EQ(four[3], static_cast<float>(code % 16 - 8));
    EXPECT_EQ(four[19], static_cast<float>(code / 16 - 8));
    EXPECT_EQ(levels[3], static_cast<float>(kIq4NlLevels[static_cast<size_t>(code % 16)]));
    EXPECT_EQ(levels[19], static_cast<float>(kIq4NlLevels[static_cast<size_t>(code / 16)]));
  }
}

}  // namespace
}  // namespace tersekv
