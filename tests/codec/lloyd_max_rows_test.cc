// SPDX-License-Identifier: Apache-2.0
// Norm modes, means and odd rows of the Lloyd-Max codec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "src/codec/list.h"
#include "tersekv/codec.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using ::testing::HasSubstr;

KvSpec Spec(int bits, const std::string& norm, const std::string& rotation = "h1") {
  const std::string b = std::to_string(bits);
  return ParseSpec("k" + b + "v" + b + "+rot=" + rotation + "+mean=off+scale=off+norm=" + norm).value();
}

// One codec with its rows encoded and decoded.
struct Coded {
  Coded(const KvSpec& spec, const std::vector<float>& rows, int dim, RowStats stats = {})
      : d(static_cast<size_t>(dim)) {
    const auto codec = VectorCodec::Create(spec, Kv::kK, dim, 0, 0, std::move(stats)).value();
    const size_t n = rows.size() / d;
    record_bytes = codec->record_bytes();
    records.resize(n * record_bytes);
    back.resize(rows.size());
    status = codec->Encode(rows.data(), n, records.data());
    codec->Decode(records.data(), n, back.data());
  }
  Status status;
  size_t d, record_bytes = 0;
  std::vector<uint8_t> records;
  std::vector<float> back;
};

double Dot(const float* a, const float* b, size_t d) {
  double sum = 0;
  for (size_t c = 0; c < d; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

// Rows of norms from 2^-6 to 2^6, so that roundings of the scale average out.
std::vector<float> RowsOfManyNorms(size_t n, int d) {
  std::vector<float> rows = reference::GaussianRows(21, n, d);
  reference::Random random(22);
  for (size_t i = 0; i < n; ++i) {
    const float factor = static_cast<float>(std::exp2(12 * random.Uniform() - 6));
    for (int c = 0; c < d; ++c) rows[i * static_cast<size_t>(d) + static_cast<size_t>(c)] *= factor;
  }
  return rows;
}

constexpr double kBf16 = 0x1.01p-8;  // a rounding to bf16, and a little for fp32

TEST(LloydMaxNorm, UnbiasedKeepsTheInnerProduct) {
  for (const int bits : kLloydMaxBits) {
    for (const int d : {64, 128, 512}) {
      const size_t n = 2048;
      const std::vector<float> rows = RowsOfManyNorms(n, d);
      const Coded coded(Spec(bits, "unbiased"), rows, d);
      double sum = 0;
      for (size_t i = 0; i < n; ++i) {
        const float* x = &rows[i * coded.d];
        const double ratio = Dot(x, &coded.back[i * coded.d], coded.d) / Dot(x, x, coded.d);
        ASSERT_NEAR(ratio, 1, kBf16) << bits << " " << i;
        sum += ratio;
      }
      EXPECT_NEAR(sum / static_cast<double>(n), 1, 2e-4) << bits << " " << d;
    }
  }
}

TEST(LloydMaxNorm, OtherModesShrinkTheInnerProduct) {
  // At 2 bits and d = 128: none 0.883, norm match 0.940 (the shrink of <x, decoded>).
  const std::vector<float> rows = RowsOfManyNorms(2048, 128);
  for (const auto& [norm, expected] : {std::pair{"none", 0.883}, {"match", 0.940}, {"ls", 0.884}}) {
    const Coded coded(Spec(2, norm), rows, 128);
    double sum = 0;
    for (size_t i = 0; i < 2048; ++i) {
      const float* x = &rows[i * 128];
      sum += Dot(x, &coded.back[i * 128], 128) / Dot(x, x, 128);
    }
    EXPECT_NEAR(sum / 2048, expected, 0.002) << norm;
  }
}

TEST(LloydMaxNorm, MatchKeepsTheNorm) {
  const std::vector<float> rows = RowsOfManyNorms(512, 64);
  for (const int bits : kLloydMaxBits) {
    const Coded coded(Spec(bits, "match"), rows, 64);
    for (size_t i = 0; i < 512; ++i) {
      const double x = Dot(&rows[i * 64], &rows[i * 64], 64), back = Dot(&coded.back[i * 64], &coded.back[i * 64], 64);
      ASSERT_NEAR(std::sqrt(back / x), 1, kBf16) << bits << " " << i;
    }
  }
}

TEST(LloydMaxNorm, LeastSquaresIsTheBestScale) {
  const std::vector<float> rows = RowsOfManyNorms(512, 128);
  for (const int bits : kLloydMaxBits) {
    for (const char* rotation : {"none", "h1", "haar"}) {
      const Coded coded(Spec(bits, "ls", rotation), rows, 128);
      for (size_t i = 0; i < 512; ++i) {
        const float *x = &rows[i * 128], *back = &coded.back[i * 128];
        double error[3] = {};
        for (size_t c = 0; c < 128; ++c) {
          for (const int side : {-1, 0, 1}) {
            error[side + 1] +=
                std::pow(static_cast<double>(x[c]) - (1 + 0.01 * side) * static_cast<double>(back[c]), 2);
          }
        }
        ASSERT_LT(error[1], error[0]) << bits << " " << rotation << " " << i;
        ASSERT_LT(error[1], error[2]) << bits << " " << rotation << " " << i;
      }
    }
  }
}

TEST(LloydMaxRows, ZeroRowIsZeroCodesAndScaleAndDecodesToTheMean) {
  RowStats stats;
  for (int c = 0; c < 32; ++c) {
    stats.mean.push_back(static_cast<float>(c) / 8.0f - 1.0f);
    stats.scale.push_back(1.0f + static_cast<float>(c % 3));
  }
  for (const int bits : kLloydMaxBits) {
    for (const char* norm : {"none", "match", "ls", "unbiased"}) {
      for (const char* rotation : {"none", "h1", "haar"}) {
        const Coded zero(Spec(bits, norm, rotation), std::vector<float>(32, 0.0f), 32);
        ASSERT_TRUE(zero.status.ok());
        EXPECT_EQ(zero.records, std::vector<uint8_t>(zero.record_bytes, 0));
        EXPECT_EQ(zero.back, std::vector<float>(32, 0.0f));
        const Coded mean(Spec(bits, norm, rotation), stats.mean, 32, stats);
        ASSERT_TRUE(mean.status.ok());
        EXPECT_EQ(mean.records, std::vector<uint8_t>(mean.record_bytes, 0));
        EXPECT_EQ(mean.back, stats.mean);
      }
    }
  }
}

TEST(LloydMaxRows, TinyValues) {
  for (const int bits : kLloydMaxBits) {
    for (const char* norm : {"none", "match", "ls", "unbiased"}) {
      // Squares underflow to nothing: as if the row were zero.
      for (const float tiny : {std::numeric_limits<float>::denorm_min(), 1e-40f, 1e-30f}) {
        const Coded coded(Spec(bits, norm), std::vector<float>(64, tiny), 64);
        ASSERT_TRUE(coded.status.ok());
        EXPECT_EQ(coded.records, std::vector<uint8_t>(coded.record_bytes, 0)) << tiny;
      }
      // Squares are normal numbers: as good as any row.
      std::vector<float> rows = reference::GaussianRows(23, 16, 64);
      const Coded plain(Spec(bits, norm), rows, 64);
      for (float& v : rows) v *= 0x1p-50f;
      const Coded small(Spec(bits, norm), rows, 64);
      for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(small.back[i], plain.back[i] * 0x1p-50f);
    }
  }
}

TEST(LloydMaxRows, HugeValues) {
  for (const int bits : kLloydMaxBits) {
    for (const char* norm : {"none", "match", "ls", "unbiased"}) {
      std::vector<float> rows(32);  // 1e18 and -1e18 in no order: the squared norm is 3.2e37
      for (size_t c = 0; c < 32; ++c) rows[c] = c * c % 7 < 3 ? 1e18f : -1e18f;
      const Coded coded(Spec(bits, norm), rows, 32);
      ASSERT_TRUE(coded.status.ok()) << norm;
      double error = 0;
      for (size_t c = 0; c < 32; ++c) error += std::pow(static_cast<double>(rows[c] - coded.back[c]) / 1e18, 2) / 32;
      EXPECT_LT(error, 0.3) << bits << " " << norm;
    }
  }
}

TEST(LloydMaxRows, NormThatOverflowsIsAnError) {
  std::vector<float> rows(3 * 64, 1.0f);
  rows[64 + 5] = 2e19f;
  const auto codec = VectorCodec::Create(Spec(4, "ls"), Kv::kK, 64).value();
  std::vector<uint8_t> records(3 * codec->record_bytes(), 0x5a);
  const Status status = codec->Encode(rows.data(), 3, records.data());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("overflows"));
  EXPECT_EQ(records, std::vector<uint8_t>(records.size(), 0x5a));
}

TEST(LloydMaxRows, ValuesThatAreNotFiniteAreNamed) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* text : {"k2v2", "k4v4", "k8v8", "k4v4+rot=haar", "f16", "bf16", "f32"}) {
    const auto codec = VectorCodec::Create(ParseSpec(text).value(), Kv::kV, 64).value();
    for (const float bad : {infinity, -infinity, nan}) {
      std::vector<float> rows = reference::GaussianRows(24, 40, 64);
      rows[37 * 64 + 11] = bad;
      rows[38 * 64 + 2] = bad;  // the first is named
      std::vector<uint8_t> records(40 * codec->record_bytes(), 0x5a);
      const Status status = codec->Encode(rows.data(), 40, records.data());
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text;
      EXPECT_THAT(status.message(), HasSubstr("row 37, channel 11")) << text;
      EXPECT_EQ(records, std::vector<uint8_t>(records.size(), 0x5a)) << text;
    }
  }
}

// Adding a constant to all rows changes nothing once the mean has it too. Exact here: the sums are.
TEST(LloydMaxRows, MeanTakesAConstantAway) {
  std::vector<float> rows = reference::GaussianRows(25, 64, 128);
  for (float& v : rows) v = std::nearbyint(v * 64.0f) / 64.0f;
  RowStats stats, zero;
  std::vector<float> moved = rows;
  for (size_t c = 0; c < 128; ++c) stats.mean.push_back(static_cast<float>(static_cast<int>(c * 37 % 129) - 64) * 4);
  zero.mean.assign(128, 0.0f);
  for (size_t i = 0; i < rows.size(); ++i) moved[i] += stats.mean[i % 128];
  for (const int bits : kLloydMaxBits) {
    for (const char* rotation : {"none", "h1", "haar"}) {
      const Coded plain(Spec(bits, "unbiased", rotation), rows, 128);
      const Coded shifted(Spec(bits, "unbiased", rotation), moved, 128, stats);
      EXPECT_EQ(shifted.records, plain.records) << bits << " " << rotation;
      EXPECT_EQ(Coded(Spec(bits, "unbiased", rotation), rows, 128, zero).records, plain.records);
      for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(shifted.back[i], plain.back[i] + stats.mean[i % 128]);
      EXPECT_NE(Coded(Spec(bits, "unbiased", rotation), moved, 128).records, plain.records);
    }
  }
}

// Rows that are `scale` times larger channel by channel are the same rows once the scale is divided out.
TEST(LloydMaxRows, ScaleIsDividedOut) {
  const std::vector<float> rows = reference::GaussianRows(26, 64, 64);
  RowStats stats;
  for (size_t c = 0; c < 64; ++c) stats.scale.push_back(std::ldexp(1.0f, static_cast<int>(c % 9) - 4));
  std::vector<float> stretched = rows;
  for (size_t i = 0; i < rows.size(); ++i) stretched[i] *= stats.scale[i % 64];
  for (const int bits : kLloydMaxBits) {
    const Coded plain(Spec(bits, "ls"), rows, 64), coded(Spec(bits, "ls"), stretched, 64, stats);
    EXPECT_EQ(coded.records, plain.records) << bits;
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(coded.back[i], plain.back[i] * stats.scale[i % 64]);
  }
}

}  // namespace
}  // namespace tersekv
