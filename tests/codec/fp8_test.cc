// SPDX-License-Identifier: Apache-2.0
#include "src/codec/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "src/base/abs_max.h"
#include "tests/reference/block_rows.h"
#include "tests/reference/record_rows.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/fp8-inl.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {64, 80, 128, 256};

std::vector<uint8_t> Encode(const std::vector<float>& rows, int d) {
  return reference::EncodeRows(Fp8(), rows, d, [](auto&&... a) { plain::EncodeRecord(a...); });
}
std::vector<float> Decode(const std::vector<uint8_t>& records, int d) {
  return reference::DecodeRows(Fp8(), records, d, [](auto&&... a) { plain::DecodeRecord(a...); });
}

// One row in double precision, from the definition; each result is rounded to fp32 once.
std::vector<uint8_t> Reference(const float* y, int d) {
  double largest = 0;
  for (int c = 0; c < d; ++c) largest = std::max(largest, std::fabs(static_cast<double>(y[c])));
  const float scale = static_cast<float>(largest / 448);
  std::vector<uint8_t> record;
  for (int c = 0; c < d; ++c) {
    if (scale == 0) {
      record.push_back(0);
      continue;
    }
    const double v = static_cast<double>(static_cast<float>(static_cast<double>(y[c]) / static_cast<double>(scale)));
    const double magnitude = std::fabs(v);
    const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
    const double step = std::ldexp(1.0, exponent - 3);
    const double rounded = std::min(std::nearbyint(magnitude / step) * step, 448.0);
    int code = static_cast<int>(rounded / 0x1p-9);  // subnormals count steps of 2^-9
    if (rounded >= 0x1p-6) {
      const int e = std::ilogb(rounded);
      code = (e + 7) * 8 + static_cast<int>(std::ldexp(rounded, 3 - e)) - 8;
    }
    record.push_back(static_cast<uint8_t>(code | (std::signbit(v) ? 0x80 : 0)));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  for (int i = 0; i < 4; ++i) record.push_back(static_cast<uint8_t>(bits >> 8 * i));
  return record;
}

TEST(Fp8, RecordsHaveTheListedSize) {
  for (const int d : kDims) {
    EXPECT_EQ(static_cast<double>(Fp8::Bytes(reference::ShapeOf(d))), reference::ListedBytes(Fp8::kFamily, d));
  }
}

TEST(Fp8, BytesAreTheReferences) {
  for (const int d : kDims) {
    const size_t n = 4200, bytes = Fp8::Bytes(reference::ShapeOf(d));
    const std::vector<float> rows = reference::BlockRows(static_cast<uint64_t>(d), n, d);
    const std::vector<uint8_t> records = Encode(rows, d);
    for (size_t i = 0; i < n; ++i) {
      const std::vector<uint8_t> expected = Reference(&rows[i * static_cast<size_t>(d)], d);
      ASSERT_EQ(std::memcmp(&records[i * bytes], expected.data(), bytes), 0) << "row " << i << " of d " << d;
    }
  }
}

// The error of a value is uniform in its step, 2^-3 of its binade under the row's scale; the largest value has none.
double ExpectedNmse(const std::vector<float>& rows, size_t d) {
  double error = 0, power = 0;
  for (size_t at = 0; at < rows.size(); at += d) {
    double largest = 0;
    for (size_t c = at; c < at + d; ++c) largest = std::max(largest, std::fabs(static_cast<double>(rows[c])));
    for (size_t c = at; c < at + d; ++c) {
      const double v = std::fabs(static_cast<double>(rows[c]));
      const int exponent = std::max(std::ilogb(v * 448 / largest), -6);
      const double step = std::ldexp(largest / 448, exponent - 3);
      if (v < largest) error += step * step / 12;
      power += v * v;
    }
  }
  return error / power;
}

TEST(Fp8, DistortionOfGaussianRows) {
  for (const int d : {64, 80, 128, 256, 4096}) {
    const std::vector<float> rows = reference::GaussianRows(static_cast<uint64_t>(d), (1u << 20) / d, d);
    const double nmse = reference::Nmse(rows, Decode(Encode(rows, d), d));
    std::printf("fp8, d %d: NMSE %.4g\n", d, nmse);
    EXPECT_NEAR(nmse / ExpectedNmse(rows, static_cast<size_t>(d)), 1, 0.01) << d << ": " << nmse;
    EXPECT_LT(nmse, 1.03 * 7.0e-4) << d;
    if (d >= 256) {  // as with one scale for a whole tensor
      EXPECT_NEAR(nmse / 7.0e-4, 1, 0.03) << nmse;
    }
  }
}

TEST(Fp8, OddRows) {
  const int d = 64;
  std::vector<float> rows(64, -0.0f);
  EXPECT_EQ(Encode(rows, d), std::vector<uint8_t>(68, 0));
  EXPECT_EQ(Decode(Encode(rows, d), d), std::vector<float>(64, 0.0f));
  // No scale is left for values below 448 * 2^-150.
  rows[3] = 1e-43f;
  EXPECT_EQ(Encode(rows, d), std::vector<uint8_t>(68, 0));
  for (const float largest : {1e-38f, 1e-20f, 1.0f, 448.0f, 65504.0f, 1.8e19f, 3.4e38f}) {
    for (size_t c = 0; c < 64; ++c) rows[c] = c % 2 == 0 ? largest : -largest;
    const std::vector<float> back = Decode(Encode(rows, d), d);
    float worst = 0;
    for (size_t c = 0; c < 64; ++c) worst = std::max(worst, std::fabs(back[c] / rows[c] - 1));
    EXPECT_LT(worst, largest < 1e-37f ? 1e-4f : 1e-6f) << largest;  // a subnormal scale has fewer bits
  }
}

// Under a scale of 1 values that E4M3 has stay what they are.
TEST(Fp8, EveryCodeSurvives) {
  std::vector<float> rows(256);
  for (size_t c = 0; c < 256; ++c) rows[c] = c % 128 == 127 ? 448.0f : E4M3ToF32(static_cast<uint8_t>(c));
  const std::vector<uint8_t> record = Encode(rows, 256);
  for (size_t c = 0; c < 256; ++c) {
    EXPECT_EQ(record[c], c % 128 == 127 ? 0x7e : c);
  }
  EXPECT_EQ(Decode(record, 256), rows);
}

TEST(Fp8, GoldenRecord) {
  std::vector<float> rows(16);
  for (size_t c = 0; c < 16; ++c) rows[c] = static_cast<float>(c) - 8;
  // 8/448 is the scale: codes of 56 * (c - 8).
  const std::vector<uint8_t> expected = {0xfe, 0xfc, 0xfa, 0xf9, 0xf6, 0xf2, 0xee, 0xe6, 0x00, 0x66,
                                         0x6e, 0x72, 0x76, 0x79, 0x7a, 0x7c, 0x25, 0x49, 0x92, 0x3c};
  EXPECT_EQ(Encode(rows, 16), expected);
}

// fp8-head, fp8-tensor: the codes alone, of the value itself.
std::vector<uint8_t> Codes(const std::vector<float>& row) {
  const int d = static_cast<int>(row.size());
  const auto head = reference::EncodeRows(Fp8Head(), row, d, [](auto&&... a) { plain::EncodeRecord(a...); });
  const auto tensor = reference::EncodeRows(Fp8Tensor(), row, d, [](auto&&... a) { plain::EncodeRecord(a...); });
  EXPECT_EQ(head, tensor);
  return head;
}
std::vector<float> Values(const std::vector<uint8_t>& codes) {
  return reference::DecodeRows(Fp8Head(), codes, static_cast<int>(codes.size()),
                               [](auto&&... a) { plain::DecodeRecord(a...); });
}

TEST(Fp8Codes, RecordsHaveTheListedSize) {
  for (const int d : kDims) {
    EXPECT_EQ(Fp8Head::Bytes(reference::ShapeOf(d)), static_cast<size_t>(d));
    EXPECT_EQ(static_cast<double>(d), reference::ListedBytes(Family::kFp8Head, d));
    EXPECT_EQ(static_cast<double>(d), reference::ListedBytes(Family::kFp8Tensor, d));
  }
}

// Under a row's own scale they are the codes of fp8.
TEST(Fp8Codes, AreThoseOfFp8OfTheScaledRow) {
  const int d = 64;
  const std::vector<float> rows = reference::BlockRows(3, 2000, d);
  for (size_t at = 0; at < rows.size(); at += d) {
    const std::vector<uint8_t> expected = Reference(&rows[at], d);
    float scale;
    std::memcpy(&scale, &expected[static_cast<size_t>(d)], 4);
    if (scale == 0) continue;
    std::vector<float> row(rows.begin() + static_cast<ptrdiff_t>(at), rows.begin() + static_cast<ptrdiff_t>(at) + d);
    for (float& v : row) v /= scale;
    ASSERT_EQ(Codes(row), std::vector<uint8_t>(expected.begin(), expected.begin() + d)) << "row " << at / d;
  }
}

TEST(Fp8Codes, SaturateAndKeepEveryValueOfE4M3) {
  EXPECT_EQ(Codes({0, -0.0f, 1, -1, 448, -448, 464, 1e6f, -3e38f, 0x1p-9f, 0x1p-10f, -0x1.8p-10f}),
            (std::vector<uint8_t>{0, 0x80, 0x38, 0xb8, 0x7e, 0xfe, 0x7e, 0x7e, 0xfe, 1, 0, 0x81}));
  std::vector<uint8_t> codes;
  for (int c = 0; c < 256; ++c) codes.push_back(static_cast<uint8_t>(c % 128 == 127 ? 0x7e : c));
  EXPECT_EQ(Codes(Values(codes)), codes);
}

}  // namespace
}  // namespace tersekv
