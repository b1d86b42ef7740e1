// SPDX-License-Identifier: Apache-2.0
// Level tables and distortion of the Lloyd-Max codec against docs/decisions/0001-contract.md, section 2.
#include "src/codec/lloyd_max.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "src/codec/list.h"
#include "tersekv/codec.h"
#include "tests/reference/plain_encode.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {64, 128, 256, 512};
constexpr int kPaleyDims[] = {80, 96, 112, 192, 576};

// Mean of |x - decoded|^2 / |x|^2 over rows [n, d].
double Distortion(const std::string& spec, Kv side, const std::vector<float>& rows, int dim) {
  const auto codec = VectorCodec::Create(ParseSpec(spec).value(), side, dim).value();
  const size_t d = static_cast<size_t>(dim), n = rows.size() / d;
  std::vector<uint8_t> records(n * codec->record_bytes());
  std::vector<float> back(rows.size());
  EXPECT_TRUE(codec->Encode(rows.data(), n, records.data()).ok());
  codec->Decode(records.data(), n, back.data());
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    double error = 0, power = 0;
    for (size_t c = i * d; c < (i + 1) * d; ++c) {
      const double x = static_cast<double>(rows[c]), difference = x - static_cast<double>(back[c]);
      error += difference * difference;
      power += x * x;
    }
    sum += error / power;
  }
  return sum / static_cast<double>(n);
}

std::string PlainSpec(int bits, const std::string& rotation) {
  const std::string b = std::to_string(bits);
  return "k" + b + "v" + b + "+rot=" + rotation + "+mean=off+scale=off+norm=none";
}

TEST(LloydMax, LevelTablesAreTheContracts) {
  const struct {
    int bits;
    float step;
    std::vector<int> positive;
  } rows[] = {
      {2, .013317f, {34, 113}},
      {3, .018858f, {13, 40, 71, 113}},
      {4, .025884f, {5, 15, 25, 36, 48, 62, 79, 104}},
      {5, .033545f, {2, 6, 10, 14, 18, 22, 26, 31, 36, 41, 47, 53, 60, 68, 79, 95}},
      {6, .034706f, {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                     33, 36, 39, 42, 45, 48, 51, 54, 58, 62, 66, 71, 77, 84, 93, 108}},
  };
  for (const auto& row : rows) {
    const LevelTable& table = LevelsOf(row.bits);
    const size_t half = row.positive.size();
    EXPECT_EQ(table.bits, row.bits);
    EXPECT_EQ(table.count, 1 << row.bits);
    EXPECT_EQ(table.grid, 0);
    EXPECT_EQ(table.step, row.step);
    for (size_t i = 0; i < half; ++i) {
      EXPECT_EQ(table.level[half + i], row.positive[i]);
      EXPECT_EQ(table.level[half - 1 - i], -row.positive[i]);
    }
    for (size_t code = 2 * half; code < 256; ++code) EXPECT_EQ(table.level[code], 0);
  }
}

TEST(LloydMax, ThresholdsAreMidpointsInFp32) {
  for (int bits = 2; bits <= 6; ++bits) {
    const LevelTable& table = LevelsOf(bits);
    const size_t last = static_cast<size_t>(table.count) - 1;
    for (size_t k = 0; k < last; ++k) {
      const float sum = static_cast<float>(table.level[k] + table.level[k + 1]);
      EXPECT_EQ(table.threshold[k], table.step * sum / 2.0f) << bits << " " << k;
      EXPECT_EQ(table.threshold[k], -table.threshold[last - 1 - k]);
      if (k > 0) {
        EXPECT_LT(table.threshold[k - 1], table.threshold[k]);
      }
    }
    EXPECT_EQ(table.threshold[last / 2], 0.0f);
  }
  EXPECT_EQ(LevelsOf(2).threshold[2], .013317f * 147.0f / 2.0f);
  EXPECT_EQ(LevelsOf(4).threshold[14], .025884f * 183.0f / 2.0f);
}

TEST(LloydMax, GridsOfSevenAndEightBits) {
  for (const int bits : {7, 8}) {
    const LevelTable& table = LevelsOf(bits);
    const int q = bits == 7 ? 63 : 127;
    EXPECT_EQ(table.bits, bits);
    EXPECT_EQ(table.grid, q);
    EXPECT_EQ(table.count, 2 * q + 1);
    for (int code = 0; code < 256; ++code) {
      EXPECT_EQ(table.level[static_cast<size_t>(code)], code <= 2 * q ? code - q : 0);
    }
  }
}

// The Gaussian midpoints and centroids in unit-variance scale: what the integers stand for.
TEST(LloydMax, LevelsAreNearTheGaussianCentroids) {
  const double b4[] = {0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(static_cast<double>(LevelsOf(4).step) * LevelsOf(4).level[8 + i], b4[i], 0.045) << i;
  }
  const double b2[] = {0.4527800, 1.5104176};
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(static_cast<double>(LevelsOf(2).step) * LevelsOf(2).level[2 + i], b2[i], 0.007) << i;
  }
}

// Gaussian rows of norms over whole powers of two, so that a rounding of the scale is what it is on average.
std::vector<float> Rows(uint64_t seed, size_t n, int d) {
  std::vector<float> rows = reference::GaussianRows(seed, n, d);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t row = i / static_cast<size_t>(d);
    rows[i] *= static_cast<float>(std::exp2(2.0 * static_cast<double>(row) / static_cast<double>(n)));
  }
  return rows;
}

// The contract's D is that of the codes with an exact scale. Rounding the scale to bf16, whose relative error is
// uniform in +-2^-8 / m with log-uniform m in [1, 2), adds E = 2^-16 / 3 * 3 / (8 ln 2).
const double kBf16Scale = 0x1p-16 / (8 * std::log(2.0));

// Of the levels themselves, by quadrature over one coordinate of a uniform unit vector times sqrt(d): its density is
// (1 - x^2 / d)^((d - 3) / 2), x in [-sqrt(d), sqrt(d)]. b <= 6.
double ExactDistortion(int d, const LevelTable& table) {
  double weights = 0, sum = 0;
  size_t code = static_cast<size_t>(table.count / 2);
  for (double x = 5e-6; x < std::min(std::sqrt(d), 9.0); x += 1e-5) {
    while (code + 1 < static_cast<size_t>(table.count) && x > static_cast<double>(table.threshold[code])) ++code;
    const double error = x - static_cast<double>(table.step) * table.level[code];
    const double weight = std::pow(1 - x * x / d, (d - 3) / 2.0);
    weights += weight;
    sum += weight * error * error;
  }
  return sum / weights;
}

struct Expected {
  double d, tolerance;
};
Expected ExpectedDistortion(int dim, int bits) {
  static const double lloyd_max[4][5] = {{.1145258, .03339083, .009131518, .002399227, 6.159629e-4},
                                         {.1160001, .03396593, .009314788, .002451460, 6.299608e-4},
                                         {.1167400, .03425600, .009407529, .002477942, 6.370651e-4},
                                         {.1171107, .03440167, .009454177, .002491275, 6.406436e-4}};
  static const double over[] = {.002, .001, .003, .009, .031};
  static const double grid[2][3] = {{.000143, .000170, .000197}, {3.5e-5, 4.2e-5, 4.9e-5}};
  static const double half_digit[] = {.0000005, .05e-5};  // the contract's numbers are rounded
  if (std::find(std::begin(kDims), std::end(kDims), dim) == std::end(kDims)) return {0, 0};
  const size_t row = dim == 64 ? 0 : dim == 128 ? 1 : dim == 256 ? 2 : 3;
  const size_t b = static_cast<size_t>(bits);
  if (bits <= 6) {
    const double d = lloyd_max[row][b - 2] * (1 + over[b - 2]);
    return {d, 0.01 * d};
  }
  if (row == 3) return {0, 0};  // the contract has none
  return {grid[b - 7][row] + kBf16Scale, 0.01 * grid[b - 7][row] + half_digit[b - 7]};
}

void ExpectDistortion(int dim, const std::string& rotation) {
  const std::vector<float> rows = Rows(static_cast<uint64_t>(dim), (size_t{1} << 21) / static_cast<size_t>(dim), dim);
  for (const int bits : kLloydMaxBits) {
    const double measured = Distortion(PlainSpec(bits, rotation), Kv::kV, rows, dim);
    const Expected expected = ExpectedDistortion(dim, bits);
    testing::Test::RecordProperty("D_" + std::to_string(dim) + "_" + std::to_string(bits), std::to_string(measured));
    if (bits <= 6) {
      const double exact = ExactDistortion(dim, LevelsOf(bits)) + kBf16Scale;
      EXPECT_NEAR(measured / exact, 1, 0.006) << "d " << dim << ", " << bits << " bits";
    }
    if (expected.d > 0) {
      EXPECT_NEAR(measured, expected.d, expected.tolerance) << "d " << dim << ", " << bits << " bits";
    }
  }
}

TEST(LloydMax, DistortionOfGaussianRows) {
  for (const int dim : kDims) ExpectDistortion(dim, "h1");
  for (const int dim : kPaleyDims) ExpectDistortion(dim, "h1");
}

TEST(LloydMax, DistortionUnderHaar) { ExpectDistortion(64, "haar"); }

// 7 and 8 bits, from the rows themselves: the error is uniform in a step of max / q, and the largest value has none.
TEST(LloydMax, GridDistortionIsAStepSquaredOverTwelve) {
  for (const int dim : kDims) {
    const size_t d = static_cast<size_t>(dim), n = (size_t{1} << 20) / d;
    const std::vector<float> rows = Rows(static_cast<uint64_t>(dim) + 1, n, dim);
    double ratio = 0;  // mean of max^2 / |x|^2
    for (size_t i = 0; i < n; ++i) {
      double largest = 0, power = 0;
      for (size_t c = i * d; c < (i + 1) * d; ++c) {
        const double square = static_cast<double>(rows[c]) * static_cast<double>(rows[c]);
        largest = std::max(largest, square);
        power += square;
      }
      ratio += largest / power / static_cast<double>(n);
    }
    for (const int bits : {7, 8}) {
      const double q = bits == 7 ? 63 : 127, expected = ratio * (dim - 1) / (12 * q * q);
      EXPECT_NEAR(Distortion(PlainSpec(bits, "none"), Kv::kV, rows, dim), expected + kBf16Scale, 0.01 * expected)
          << dim << " " << bits;
    }
  }
}

TEST(LloydMax, DistortionOfKeysIsThatOfValues) {
  const std::vector<float> rows = reference::GaussianRows(9, 2048, 128);
  for (const int bits : kLloydMaxBits) {
    const double k = Distortion(PlainSpec(bits, "h1"), Kv::kK, rows, 128);
    EXPECT_NEAR(k / Distortion(PlainSpec(bits, "h1"), Kv::kV, rows, 128), 1, 0.02) << bits;
  }
}

// What the rotation is for: rows with a few large channels cost no more than about what Gaussian rows cost.
TEST(LloydMax, OutliersAreSpread) {
  std::vector<float> rows = reference::GaussianRows(10, 2048, 128);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 128 % 33 == 5) rows[i] *= 20.0f;  // 4 channels
  }
  EXPECT_LT(Distortion(PlainSpec(4, "h1"), Kv::kV, rows, 128), 0.0105);
  EXPECT_GT(Distortion(PlainSpec(4, "none"), Kv::kV, rows, 128), 0.03);
}

}  // namespace
}  // namespace tersekv
