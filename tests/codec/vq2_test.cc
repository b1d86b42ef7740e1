// SPDX-License-Identifier: Apache-2.0
#include "src/codec/vq2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "src/base/lanes.h"
#include "src/bits/pack.h"
#include "tests/reference/record_coder.h"
#include "tests/reference/rows.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/tree_sum-inl.h"
// after tree_sum-inl.h
#include "src/codec/integer_levels-inl.h"
#include "src/codec/vq2-inl.h"

namespace tersekv {
namespace {

static_assert(RecordTag<Vq2>);
constexpr float kWidths[] = {2, 2.5f, 3, 3.5f, 4};
constexpr NormMode kNorms[] = {NormMode::kNone, NormMode::kMatch, NormMode::kLs, NormMode::kUnbiased};

RecordShape Shape(int d, float bits, NormMode norm) {
  RecordShape shape;
  shape.d = d;
  shape.bits = bits;
  shape.norm = norm;
  return shape;
}

auto Coder(const RecordShape& shape) {
  return reference::RecordCoder(
      shape, Vq2::Bytes(shape), Vq2::ScratchBytes(shape),
      [](const RecordShape& s, const RecordRow& row, uint8_t* record) { plain::EncodeRecord(Vq2(), s, row, record); },
      [](const RecordShape& s, const uint8_t* record, float* y) { plain::DecodeRecord(Vq2(), s, record, y); });
}

uint64_t BitsAt(const std::vector<uint8_t>& record, size_t bit, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i, ++bit) value |= static_cast<uint64_t>(record[bit / 8] >> (bit % 8) & 1) << i;
  return value;
}

TEST(Vq2, RecordIsIndicesAndScale) {
  for (const float bits : kWidths) {
    for (const int d : {16, 64, 80, 128, 576}) {
      EXPECT_EQ(Vq2::Bytes(Shape(d, bits, NormMode::kLs)), static_cast<size_t>(static_cast<float>(d) * bits) / 8 + 2);
    }
  }
}

// The fp32 codebooks at d = 128.
TEST(Vq2, DistortionOfGaussianRows) {
  const double expected[] = {.10625, .05655, .02934, .01513, .00771};
  for (size_t w = 0; w < 5; ++w) {
    for (const int d : {64, 128, 256}) {
      auto coder = Coder(Shape(d, kWidths[w], NormMode::kNone));
      const size_t n = static_cast<size_t>(d);
      const double measured = reference::MeanError(coder, reference::GaussianRows(n, (size_t{1} << 19) / n, d), n);
      std::printf("2-D VQ %.1f bits, d = %d: D = %.6f\n", static_cast<double>(kWidths[w]), d, measured);
      EXPECT_NEAR(measured / expected[w], 1, 0.02) << kWidths[w] << " " << d;
    }
  }
}

// In doubles, from the record's definition; where the two nearest entries are all but equally near either will do.
TEST(Vq2, IndexIsOfTheNearestEntry) {
  for (const float bits : kWidths) {
    const RecordShape shape = Shape(64, bits, NormMode::kLs);
    const Vq2Table& vq = Vq2TableOf(shape);
    auto coder = Coder(shape);
    const std::vector<float> rows = reference::GaussianRows(31, 200, 64);
    for (size_t at = 0; at < rows.size(); at += 64) {
      const std::vector<uint8_t> record = coder.Code(&rows[at]);
      const double per_level = 8 / std::sqrt(reference::RowDot(&rows[at], &rows[at], 64)) / vq.table.step;
      for (size_t p = 0; p < 32; ++p) {
        const auto distance = [&](uint64_t e) {
          return std::hypot(rows[at + 2 * p] * per_level - vq.levels[2 * e],
                            rows[at + 2 * p + 1] * per_level - vq.levels[2 * e + 1]);
        };
        double nearest = 1e9;
        for (uint64_t e = 0; e < static_cast<uint64_t>(vq.table.count); ++e) nearest = std::min(nearest, distance(e));
        const int index_bits = Vq2::IndexBits(shape);
        const uint64_t index = BitsAt(record, p * static_cast<size_t>(index_bits), index_bits);
        ASSERT_LE(distance(index), nearest + 0.36) << bits << " " << p;  // 2 * hypot(1/8, 1/8) of input rounding
      }
    }
  }
}

TEST(Vq2, DecodedPairIsItsEntryTimesTheScale) {
  reference::Random random(32);
  for (const float bits : kWidths) {
    const RecordShape shape = Shape(80, bits, NormMode::kLs);
    const Vq2Table& vq = Vq2TableOf(shape);
    const size_t index_bits = static_cast<size_t>(Vq2::IndexBits(shape));
    auto coder = Coder(shape);
    std::vector<uint8_t> record(coder.bytes());
    for (uint8_t& byte : record) byte = static_cast<uint8_t>(random.Next());
    record[record.size() - 2] = 0xc0;
    record[record.size() - 1] = 0x3f;  // 1.5
    const std::vector<float> y = coder.Read(record);
    for (size_t p = 0; p < 40; ++p) {
      const uint64_t e = BitsAt(record, p * index_bits, static_cast<int>(index_bits));
      ASSERT_EQ(y[2 * p], static_cast<float>(vq.levels[2 * e]) * 1.5f);
      ASSERT_EQ(y[2 * p + 1], static_cast<float>(vq.levels[2 * e + 1]) * 1.5f);
    }
  }
}

TEST(Vq2, NormModes) {
  constexpr double kBf16 = 0x1.01p-8;
  for (const float bits : kWidths) {
    for (const int d : {48, 128}) {
      const auto found = reference::MeasureNorms([&](NormMode norm) { return Coder(Shape(d, bits, norm)); },
                                                 reference::GaussianRows(33, 1024, d), static_cast<size_t>(d));
      EXPECT_NEAR(found.unbiased_mean, 1, 1e-3) << bits << " " << d;
      EXPECT_LT(found.unbiased_worst, kBf16);
      EXPECT_LT(found.match_worst, kBf16);
      EXPECT_EQ(found.ls_beaten, 0);
    }
  }
}

TEST(Vq2, ZeroRowIsAZeroRecord) {
  for (const float bits : kWidths) {
    for (const NormMode norm : kNorms) {
      auto coder = Coder(Shape(64, bits, norm));
      for (const float tiny : {0.0f, 1e-40f, 1e-30f}) {  // squares underflow to nothing
        const std::vector<float> row(64, tiny);
        EXPECT_EQ(coder.Code(row.data()), std::vector<uint8_t>(coder.bytes(), 0));
      }
      EXPECT_EQ(coder.Read(std::vector<uint8_t>(coder.bytes(), 0))[5], 0.0f);
    }
  }
}

// Inputs halfway between entries: the lowest index, found here by the definition in integers.
TEST(Vq2, LowestIndexWinsATie) {
  for (const float bits : kWidths) {
    const Vq2Table& vq = Vq2TableOf(Shape(2, bits, NormMode::kNone));
    int ties = 0;
    for (int a = -1535; a <= 1535; a += 31) {
      for (int b = -1535; b <= 1535; b += 33) {
        const int16_t z[] = {static_cast<int16_t>(a), static_cast<int16_t>(b)};
        int64_t least = INT64_MAX;
        int expected = 0;
        for (int e = 0; e < vq.table.count; ++e) {
          const int64_t u = a - 4 * vq.levels[2 * e], v = b - 4 * vq.levels[2 * e + 1], distance = u * u + v * v;
          ties += distance == least ? 1 : 0;
          if (distance < least) {
            least = distance;
            expected = e;
          }
        }
        int32_t best = 0;
        uint8_t index = 0;
        plain::Vq2Search(vq, z, 1, &best, &index);
        ASSERT_EQ(index, expected) << bits << " " << a << " " << b;
      }
    }
    EXPECT_GT(ties, 0) << bits;
  }
}

TEST(Vq2, OddRowsStayBounded) {
  for (const float bits : kWidths) {
    auto coder = Coder(Shape(128, bits, NormMode::kLs));
    std::vector<float> spike(128, 0.0f);
    spike[77] = -3e4f;
    EXPECT_LE(reference::RowError(spike.data(), coder.Read(coder.Code(spike.data())).data(), 128), 1.0);
    const std::vector<float> flat(128, 0.125f), huge(128, 1e17f), small(128, 1e-18f);
    for (const auto* row : {&flat, &huge, &small}) {
      EXPECT_LT(reference::RowError(row->data(), coder.Read(coder.Code(row->data())).data(), 128), 0.3) << bits;
    }
  }
}

// Bytes that every machine must give.
TEST(Vq2, GoldenRecords) {
  std::vector<float> row(32);
  for (size_t c = 0; c < 32; ++c) row[c] = static_cast<float>(static_cast<int>(c * c * 37 % 101) - 50) / 16.0f;
  const char* golden[] = {"0ac201650419eb27e93c", "1a32f73a489e8fe338e51a3d", "e146f2b344abf43bac7fc3351f3d",
                          "9298c85b7383e9e0263efe20ba1a3a3d", "7925dcbff4a3b70cb74b243e273be43b563d"};
  for (size_t w = 0; w < 5; ++w) {
    std::string hex;
    for (const uint8_t byte : Coder(Shape(32, kWidths[w], NormMode::kUnbiased)).Code(row.data())) {
      char text[3];
      std::snprintf(text, sizeof(text), "%02x", byte);
      hex += text;
    }
    EXPECT_EQ(hex, golden[w]) << kWidths[w];
  }
}

}  // namespace
}  // namespace tersekv
