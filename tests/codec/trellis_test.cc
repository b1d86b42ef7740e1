// SPDX-License-Identifier: Apache-2.0
#include "src/codec/trellis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
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
#include "src/codec/trellis-inl.h"

namespace tersekv {
namespace {

static_assert(RecordTag<Trellis>);
constexpr NormMode kNorms[] = {NormMode::kNone, NormMode::kMatch, NormMode::kLs, NormMode::kUnbiased};

RecordShape Shape(int d, int bits, NormMode norm) {
  RecordShape shape;
  shape.d = d;
  shape.bits = static_cast<float>(bits);
  shape.norm = norm;
  return shape;
}

auto Coder(const RecordShape& shape) {
  return reference::RecordCoder(
      shape, Trellis::Bytes(shape), Trellis::ScratchBytes(shape),
      [](const RecordShape& s, const RecordRow& r, uint8_t* record) { plain::EncodeRecord(Trellis(), s, r, record); },
      [](const RecordShape& s, const uint8_t* record, float* y) { plain::DecodeRecord(Trellis(), s, record, y); });
}

// The codec once more, from docs/formats.md, with numbers instead of templates.
struct Plain {
  explicit Plain(int width) : bits(width), window(width == 2 ? 10 : width == 3 ? 9 : 8) {
    joins = 1 << (window - bits);
    lap = width == 2 ? 48 : width == 3 ? 24 : 16;
    step = width == 2 ? kTrellisStep2 : width == 3 ? kTrellisStep3 : kTrellisStep4;
    levels = width == 2 ? kTrellisLevels2 : width == 3 ? kTrellisLevels3 : kTrellisLevels4;
  }
  int Level(int join, int symbol) const { return levels[symbol * joins + join]; }
  int Next(int join, int symbol) const { return (symbol * joins + join) >> bits; }

  // The window that ends with value j, bit by bit from the circular stream.
  int WindowOf(const std::vector<uint8_t>& record, int d, int j) const {
    int found = 0;
    for (int i = 0; i < window; ++i) {
      const int bit = ((j + 1) * bits - window + i + bits * d) % (bits * d);
      found |= (record[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1) << i;
    }
    return found;
  }

  // The least cost of z from join to join, and the symbols; ties go to the lowest symbol of the earliest value.
  template <class T>
  T Constrained(const std::vector<T>& z, int join, std::vector<int>* symbols) const {
    const size_t d = z.size(), n = static_cast<size_t>(joins);
    std::vector<std::vector<T>> cost(d + 1, std::vector<T>(n, std::numeric_limits<T>::max() / 4));
    if (join >= 0) {
      cost[d][static_cast<size_t>(join)] = 0;
    } else {
      cost[d].assign(n, 0);
    }
    const auto through = [&](size_t j, int r, int u) {
      const T difference = z[j] - static_cast<T>(kMetricUnits * Level(r, u));
      return difference * difference + cost[j + 1][static_cast<size_t>(Next(r, u))];
    };
    for (size_t j = d; j-- > 0;) {
      for (int r = 0; r < joins; ++r) {
        for (int u = 0; u < 1 << bits; ++u) {
          cost[j][static_cast<size_t>(r)] = std::min(cost[j][static_cast<size_t>(r)], through(j, r, u));
        }
      }
    }
    int r = join;
    if (join < 0) r = static_cast<int>(std::min_element(cost[0].begin(), cost[0].end()) - cost[0].begin());
    const T total = cost[0][static_cast<size_t>(r)];
    if (symbols == nullptr) return total;
    symbols->clear();
    for (size_t j = 0; j < d; ++j) {
      int u = 0;
      while (through(j, r, u) != cost[j][static_cast<size_t>(r)]) ++u;
      symbols->push_back(u);
      r = Next(r, u);
    }
    return total;
  }

  // The symbols of inputs z, by the rule of docs/formats.md.
  std::vector<int> Search(const std::vector<int64_t>& z) const {
    const int d = static_cast<int>(z.size());
    std::vector<int64_t> around;
    for (int i = -lap; i < lap; ++i) around.push_back(z[static_cast<size_t>(((i % d) + d) % d)]);
    std::vector<int> symbols;
    Constrained(around, -1, &symbols);
    int join = 0;  // the symbols before the seam, the newest highest
    for (int i = lap - window / bits + 1; i < lap; ++i)
      join = join >> bits | symbols[static_cast<size_t>(i)] * joins >> bits;
    Constrained(z, join, &symbols);
    return symbols;
  }

  int bits, window, joins, lap;
  float step;
  const int8_t* levels;
};

std::vector<int> Symbols(const std::vector<uint8_t>& record, int d, int bits) {
  std::vector<int> symbols;
  for (int bit = 0; bit < d * bits; bit += bits) {
    int u = 0;
    for (int i = 0; i < bits; ++i) u |= (record[static_cast<size_t>((bit + i) / 8)] >> ((bit + i) % 8) & 1) << i;
    symbols.push_back(u);
  }
  return symbols;
}

// y / s in units of the metric.
std::vector<double> Inputs(const Plain& plain, const float* x, int d) {
  const double norm = std::sqrt(reference::RowDot(x, x, static_cast<size_t>(d)));
  std::vector<double> z;
  for (int c = 0; c < d; ++c) z.push_back(x[c] * std::sqrt(static_cast<double>(d)) / norm / plain.step * kMetricUnits);
  return z;
}

TEST(Trellis, RecordIsTheStreamAndTheScale) {
  for (const int bits : {2, 3, 4}) {
    for (const int d : {8, 64, 80, 128, 576}) {
      EXPECT_EQ(Trellis::Bytes(Shape(d, bits, NormMode::kLs)), static_cast<size_t>(d * bits / 8 + 2));
    }
  }
}

// Trained fp32 tables, tail-biting, d = 128: .0731, .0202, .0060; d = 64 and 256 by the same experiment.
TEST(Trellis, DistortionOfGaussianRows) {
  const double expected[3][3] = {{.0734, .0731, .0734}, {.0201, .0202, .0204}, {.00589, .0060, .00605}};
  for (const int bits : {2, 3, 4}) {
    for (const int d : {64, 128, 256}) {
      auto coder = Coder(Shape(d, bits, NormMode::kNone));
      const size_t n = static_cast<size_t>(d);
      const double measured = reference::MeanError(coder, reference::GaussianRows(n, (size_t{1} << 18) / n, d), n);
      std::printf("trellis %d bits, d = %d: D = %.6f\n", bits, d, measured);
      EXPECT_NEAR(measured / expected[bits - 2][d == 64 ? 0 : d == 128 ? 1 : 2], 1, 0.02) << bits << " " << d;
    }
  }
}

TEST(Trellis, DecodedValueIsTheLevelOfItsWindow) {
  reference::Random random(41);
  for (const int bits : {2, 3, 4}) {
    for (const int d : {8, 64, 72}) {
      const Plain plain(bits);
      auto coder = Coder(Shape(d, bits, NormMode::kLs));
      std::vector<uint8_t> record(coder.bytes());
      for (uint8_t& byte : record) byte = static_cast<uint8_t>(random.Next());
      record[record.size() - 2] = 0xc0;
      record[record.size() - 1] = 0x3f;  // 1.5
      const std::vector<float> y = coder.Read(record);
      for (int j = 0; j < d; ++j) {
        ASSERT_EQ(y[static_cast<size_t>(j)], static_cast<float>(plain.levels[plain.WindowOf(record, d, j)]) * 1.5f);
      }
    }
  }
}

TEST(Trellis, AValueDependsOnItsOwnWindowAlone) {
  const int d = 64;
  for (const int bits : {2, 3, 4}) {
    const Plain plain(bits);
    auto coder = Coder(Shape(d, bits, NormMode::kUnbiased));
    const std::vector<uint8_t> record = coder.Code(reference::GaussianRows(42, 1, d).data());
    const std::vector<float> y = coder.Read(record);
    for (int bit = 0; bit < bits * d; ++bit) {
      std::vector<uint8_t> flipped = record;
      flipped[static_cast<size_t>(bit / 8)] ^= static_cast<uint8_t>(1 << (bit % 8));
      const std::vector<float> other = coder.Read(flipped);
      for (int j = 0; j < d; ++j) {
        const int before = (bit - ((j + 1) * bits - plain.window) + bits * d) % (bits * d);  // place in the window of j
        if (before >= plain.window) {
          ASSERT_EQ(other[static_cast<size_t>(j)], y[static_cast<size_t>(j)]) << bit << " " << j;
        }
      }
    }
  }
}

// Viterbi in doubles over unrounded inputs. From the join that a record has nothing is better than the record but for
// the rounding of inputs; the best of all joins is little better.
TEST(Trellis, NoPathIsBetter) {
  for (const int bits : {2, 3, 4}) {
    const Plain plain(bits);
    for (const int d : {32, 64}) {
      auto coder = Coder(Shape(d, bits, NormMode::kNone));
      const size_t rows_count = bits == 2 ? 10 : 40;
      const std::vector<float> rows = reference::GaussianRows(43, rows_count, d);
      double ours = 0, best = 0;
      for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(d)) {
        const std::vector<uint8_t> record = coder.Code(&rows[at]);
        const std::vector<double> z = Inputs(plain, &rows[at], d);
        double cost = 0;
        for (int j = 0; j < d; ++j) {
          cost += std::pow(z[static_cast<size_t>(j)] - kMetricUnits * plain.levels[plain.WindowOf(record, d, j)], 2);
        }
        const int join = plain.WindowOf(record, d, d - 1) >> bits;
        const double constrained = plain.Constrained<double>(z, join, nullptr);
        ASSERT_GE(cost, constrained * (1 - 1e-12));
        ASSERT_LT(cost, constrained * 1.01);
        double least = constrained;
        for (int other = 0; other < plain.joins; ++other) {
          least = std::min(least, plain.Constrained<double>(z, other, nullptr));
        }
        ours += cost;
        best += least;
      }
      std::printf("trellis %d bits, d = %d: %.4f of the best tail-biting path's error\n", bits, d, ours / best);
      EXPECT_LT(ours / best, d == 32 ? 1.12 : 1.03) << bits << " " << d;
    }
  }
}

// Integers again, in 64 bits and without the tricks. Inputs of few values make ties on nearly every step.
TEST(Trellis, SymbolsAreThoseOfTheRule) {
  reference::Random random(44);
  for (const int bits : {2, 3, 4}) {
    const Plain plain(bits);
    for (const int d : {8, 16, 64, 128}) {
      for (int kind = 0; kind < 6; ++kind) {
        std::vector<float> x(static_cast<size_t>(d));
        for (float& v : x) {
          v = kind == 0   ? 1.0f
              : kind == 1 ? static_cast<float>(random.Below(2)) * 2 - 1
              : kind == 2 ? static_cast<float>(random.Below(3)) - 1
                          : static_cast<float>(random.Gaussian());
        }
        if (kind == 3) x[static_cast<size_t>(d) / 3] = 1e4f;
        const float sqrt_d = std::sqrt(static_cast<float>(d));
        const float s2 = static_cast<float>(reference::RowDot(x.data(), x.data(), x.size()));
        std::vector<float> y;
        for (const float v : x) y.push_back(v * sqrt_d);
        const RecordShape shape = Shape(d, bits, NormMode::kLs);
        std::vector<uint8_t> record(Trellis::Bytes(shape));
        std::vector<uint64_t> scratch(Trellis::ScratchBytes(shape) / 8 + 8);
        const RecordRow row = {y.data(), s2, std::sqrt(s2), sqrt_d, reinterpret_cast<std::byte*>(scratch.data())};
        plain::EncodeRecord(Trellis(), shape, row, record.data());
        std::vector<int64_t> z;
        for (const float v : y) {
          const float units = v * (4.0f / plain.step / row.s);
          z.push_back(static_cast<int64_t>(std::nearbyint(std::clamp(units, -1535.0f, 1535.0f))));
        }
        ASSERT_EQ(Symbols(record, d, bits), plain.Search(z)) << bits << " " << d << " " << kind;
      }
    }
  }
}

TEST(Trellis, NormModes) {
  constexpr double kBf16 = 0x1.01p-8;
  for (const int bits : {2, 3, 4}) {
    for (const int d : {48, 128}) {
      const auto found = reference::MeasureNorms([&](NormMode norm) { return Coder(Shape(d, bits, norm)); },
                                                 reference::GaussianRows(45, 1024, d), static_cast<size_t>(d));
      EXPECT_NEAR(found.unbiased_mean, 1, 1e-3) << bits << " " << d;
      EXPECT_LT(found.unbiased_worst, kBf16);
      EXPECT_LT(found.match_worst, kBf16);
      EXPECT_EQ(found.ls_beaten, 0);
    }
  }
}

TEST(Trellis, ZeroRowIsAZeroRecord) {
  for (const int bits : {2, 3, 4}) {
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

TEST(Trellis, OddRowsStayBounded) {
  for (const int bits : {2, 3, 4}) {
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
TEST(Trellis, GoldenRecords) {
  std::vector<float> row(32);
  for (size_t c = 0; c < 32; ++c) row[c] = static_cast<float>(static_cast<int>(c * c * 37 % 101) - 50) / 16.0f;
  const char* golden[] = {"533c3cbbd8579a8f523d", "b5e3ca420c062dbdabf2e0d4453d",
                          "b053b824a9c766a18538187996d1e942533d"};
  for (const int bits : {2, 3, 4}) {
    std::string hex;
    for (const uint8_t byte : Coder(Shape(32, bits, NormMode::kUnbiased)).Code(row.data())) {
      char text[3];
      std::snprintf(text, sizeof(text), "%02x", byte);
      hex += text;
    }
    EXPECT_EQ(hex, golden[bits - 2]) << bits;
  }
}

}  // namespace
}  // namespace tersekv
