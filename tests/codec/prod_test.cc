// SPDX-License-Identifier: Apache-2.0
#include "src/codec/prod.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/bits/row_codes.h"
#include "src/codec/head_codec.h"
#include "tests/reference/plain_records.h"
#include "tests/reference/rows.h"

#define TERSEKV_INL_NAMESPACE prod_plain
#include "src/codec/encode-inl.h"
#include "src/codec/prod-inl.h"

namespace tersekv {
namespace {

RotationOp Projection(RotationKind kind, uint64_t seed, int d) {
  return MakeProjection(kind, seed, 3, 2, true, d,
                        kind == RotationKind::kGaussian ? GaussianMatrix(DerivedSeed(seed, kProjection), d) : nullptr);
}

RecordShape Shape(int d, int bits, const RotationOp* projection) {
  return {.d = d, .bits = static_cast<float>(bits), .projection = projection};
}

// x: [d], as if R were the identity.
struct Row {
  explicit Row(std::vector<float> x_in) : x(std::move(x_in)) {
    std::vector<float> squares;
    for (const float v : x) squares.push_back(v * v);
    s2 = reference::PlainTreeSum(squares);
    s = std::sqrt(s2);
    sqrt_d = std::sqrt(static_cast<float>(x.size()));
    for (const float v : x) y.push_back(v * sqrt_d);
  }
  std::vector<uint8_t> Encode(const RecordShape& shape) const {
    std::vector<uint8_t> record(Prod::Bytes(shape) + 1, 0xcc);
    std::vector<float> scratch(Prod::ScratchBytes(shape) / sizeof(float) + 1);
    prod_plain::EncodeRecord(
        Prod(), shape,
        {.y = y.data(), .s2 = s2, .s = s, .sqrt_d = sqrt_d, .scratch = reinterpret_cast<std::byte*>(scratch.data())},
        record.data());
    EXPECT_EQ(record.back(), 0xcc);
    record.pop_back();
    return record;
  }
  std::vector<float> Decoded(const RecordShape& shape) const {
    std::vector<float> back(x.size(), NAN);
    prod_plain::DecodeRecord(Prod(), shape, Encode(shape).data(), back.data());
    return back;
  }
  std::vector<float> x, y;
  float s2 = 0, s = 0, sqrt_d = 0;
};

// 52 bytes a key of 3 bits; with a 3-bit value and one scale of 16 bits, 50 bytes, a token of fp16 is 5.02 times
// larger.
TEST(Prod, RecordBytes) {
  EXPECT_EQ(Prod::Bytes(Shape(128, 3, nullptr)), 52U);
  EXPECT_NEAR(512.0 / static_cast<double>(Prod::Bytes(Shape(128, 3, nullptr)) + 128 * 3 / 8 + 2), 5.02, 0.005);
  EXPECT_EQ(Prod::Bytes(Shape(64, 2, nullptr)), 20U);
  EXPECT_EQ(Prod::Bytes(Shape(80, 8, nullptr)), 84U);
  for (int bits = 1; bits <= 8; ++bits) EXPECT_EQ(Prod::Bytes(Shape(96, bits, nullptr)), 12U * bits + 4);
}

TEST(Prod, FactorIsThatOfTheExactMean) {
  for (const int d : {8, 16, 64, 80, 128, 576, 1024}) {
    const double n = d, log_ratio = std::lgamma(n / 2) - std::lgamma((n + 1) / 2);
    const double mean = std::exp(log_ratio) / std::sqrt(std::numbers::pi);  // E|u_1|
    EXPECT_NEAR(static_cast<double>(ProdFactor(RotationKind::kHadamard, d)) * std::pow(n, 1.5) * mean, 1, 2e-6) << d;
    EXPECT_NEAR(static_cast<double>(ProdFactor(RotationKind::kGaussian, d)) * n, 1.2533141, 1e-6) << d;
  }
}

TEST(Prod, ProjectionsByRotation) {
  EXPECT_EQ(ProjectionKindOf(Rotation::kHaar, 128), RotationKind::kGaussian);
  EXPECT_EQ(ProjectionKindOf(Rotation::kH1, 128), RotationKind::kHadamard);
  EXPECT_EQ(ProjectionKindOf(Rotation::kNone, 80), RotationKind::kHadamard);
  EXPECT_EQ(ProjectionKindOf(Rotation::kNone, 88), RotationKind::kGaussian);  // no Hadamard matrix of that order here
}

TEST(Prod, BytesAreTheReferences) {
  for (const RotationKind kind : {RotationKind::kHadamard, RotationKind::kGaussian}) {
    for (const int dim : {32, 64, 80, 96, 128}) {
      const size_t d = static_cast<size_t>(dim);
      const RotationOp projection = Projection(kind, 9, dim);
      std::vector<float> signs, gaussian;
      if (kind == RotationKind::kHadamard) {
        signs = reference::PlainSigns(reference::PlainMix(9 ^ 0x514a4c), 3, 2, true, dim);
      } else {
        for (size_t i = 0; i < d * d; ++i) gaussian.push_back(projection.matrix()[i % d * d + i / d]);
      }
      for (int bits = 1; bits <= 8; ++bits) {
        for (const float factor : {1.0f, 1e-3f, 1e4f, 1e12f, 0.0f}) {
          for (uint64_t seed = 0; seed < 5; ++seed) {
            std::vector<float> x = reference::GaussianRows(seed, 1, dim);
            for (float& v : x) v *= factor;
            const Row row(x);
            ASSERT_EQ(row.Encode(Shape(dim, bits, &projection)),
                      reference::PlainProd(row.y, row.s, bits, signs, gaussian))
                << dim << " " << bits << " " << factor;
          }
        }
      }
    }
  }
}

// 0x2b: the signs of the row, channel 0 lowest; 0x4465 = 4.394, its norm; 0x4200 = 3, its peak.
TEST(Prod, GoldenBytes) {
  const RotationOp projection = Projection(RotationKind::kHadamard, 0, 8);
  const Row row({2, 1, -1, .5f, -.25f, 3, -2, 0});
  EXPECT_EQ(row.Encode(Shape(8, 2, &projection)), (std::vector<uint8_t>{0x2b, 0x85, 0x65, 0x44, 0xf7, 0x38}));
  EXPECT_EQ(row.Encode(Shape(8, 4, &projection)),
            (std::vector<uint8_t>{0xae, 0xb8, 0x67, 0x5e, 0x65, 0x44, 0x47, 0x30}));
  EXPECT_EQ(row.Encode(Shape(8, 8, &projection)),
            (std::vector<uint8_t>{0x69, 0xaa, 0x2a, 0xa9, 0xf3, 0x57, 0x7e, 0x66, 0x00, 0x42, 0x8b, 0x20}));
}

TEST(Prod, ZeroAndHugeRows) {
  for (const RotationKind kind : {RotationKind::kHadamard, RotationKind::kGaussian}) {
    const RotationOp projection = Projection(kind, 1, 64);
    for (int bits = 1; bits <= 8; ++bits) {
      const RecordShape shape = Shape(64, bits, &projection);
      const Row zero(std::vector<float>(64, 0.0f));
      EXPECT_EQ(zero.Encode(shape), std::vector<uint8_t>(Prod::Bytes(shape), 0));
      EXPECT_EQ(zero.Decoded(shape), std::vector<float>(64, 0.0f));
      for (const float v : {1e-22f, 1e6f, 1e17f}) {
        for (const float b : Row(std::vector<float>(64, v)).Decoded(shape)) EXPECT_TRUE(std::isfinite(b)) << v;
      }
    }
  }
}

// d times the variance of <q, decoded - x> over S, |q| = |x| = 1, d = 128, by bits (1 to 4) and cos(q, x) (0, .5, .9),
// as published for a Gaussian and an orthogonal S. A randomised Hadamard transform is not quite a Haar matrix: channels
// with a large residual, which are those of a large value, come out up to O(1 / d) of it too large.
constexpr double kVariance[2][4][3] = {
    {{1.598, 1.312, .746}, {.559, .539, .466}, {.179, .183, .174}, {.0536, .0521, .0513}},
    {{.562, .457, .164}, {.202, .192, .151}, {.0645, .0653, .0604}, {.0197, .0191, .0185}}};

TEST(Prod, UnbiasedWithThePublishedVariance) {
  constexpr int kDim = 128, kProjections = 700, kRows = 8;
  constexpr double kCosines[] = {0, .5, .9};
  for (int k = 0; k < 2; ++k) {
    const RotationKind kind = k == 0 ? RotationKind::kGaussian : RotationKind::kHadamard;
    double sum[4][3] = {}, square[4][3] = {}, along = 0;
    for (uint64_t seed = 0; seed < kProjections; ++seed) {
      const RotationOp projection = Projection(kind, seed, kDim);
      const std::vector<float> rows = reference::GaussianRows(1000 + seed, 2 * kRows, kDim);
      for (size_t i = 0; i < kRows; ++i) {
        std::vector<double> x(&rows[2 * i * kDim], &rows[2 * i * kDim] + kDim);
        std::vector<double> w(&rows[(2 * i + 1) * kDim], &rows[(2 * i + 1) * kDim] + kDim);
        const auto dot = [](const auto& a, const auto& b) {
          double result = 0;
          for (size_t c = 0; c < a.size(); ++c) result += static_cast<double>(a[c]) * static_cast<double>(b[c]);
          return result;
        };
        const double norm = std::sqrt(dot(x, x));
        for (double& v : x) v /= norm;
        const double overlap = dot(w, x);
        for (size_t c = 0; c < w.size(); ++c) w[c] -= overlap * x[c];
        const double rest = std::sqrt(dot(w, w));
        const Row row(std::vector<float>(x.begin(), x.end()));
        for (int bits = 1; bits <= 4; ++bits) {
          const std::vector<float> back = row.Decoded(Shape(kDim, bits, &projection));
          const double to_x = dot(back, x), to_w = dot(back, w) / rest;
          if (bits == 3) along += to_x / (kProjections * kRows);
          for (int a = 0; a < 3; ++a) {
            const double error = kCosines[a] * (to_x - 1) + std::sqrt(1 - kCosines[a] * kCosines[a]) * to_w;
            sum[bits - 1][a] += error;
            square[bits - 1][a] += error * error;
          }
        }
      }
    }
    EXPECT_NEAR(along, 1, 2e-3) << k;
    for (int b = 0; b < 4; ++b) {
      for (int a = 0; a < 3; ++a) {
        constexpr double kCount = kProjections * kRows;
        const double variance = square[b][a] / kCount;
        const double slack = k == 0 ? 0 : 2e-3 * kCosines[a];
        EXPECT_LT(std::fabs(sum[b][a] / kCount), 4 * std::sqrt(variance / kCount) + slack) << k << b + 1 << a;
        EXPECT_NEAR(kDim * variance / kVariance[k][b][a], 1, 0.1)
            << k << " " << b + 1 << " bits, cosine " << kCosines[a];
        RecordProperty((k == 0 ? "gaussian_" : "orthogonal_") + std::to_string(b + 1) + "_" + std::to_string(a),
                       std::to_string(kDim * variance));
      }
    }
  }
}

// Error of the vector itself: D(b - 1) times pi / 2 (Gaussian) or pi / 2 - 1 (orthogonal).
TEST(Prod, ErrorOfGaussianRows) {
  const RotationOp projections[] = {Projection(RotationKind::kGaussian, 5, 128),
                                    Projection(RotationKind::kHadamard, 5, 128)};
  const double left[] = {1, .3608886, .1160001, .03396593, .009314788, .002451460, 6.299608e-4, 1.70e-4};
  const std::vector<float> rows = reference::GaussianRows(6, 400, 128);
  for (int k = 0; k < 2; ++k) {
    for (int bits = 1; bits <= 8; ++bits) {
      double error = 0, power = 0;
      for (size_t i = 0; i < 400; ++i) {
        const Row row(std::vector<float>(&rows[i * 128], &rows[i * 128] + 128));
        const std::vector<float> back = row.Decoded(Shape(128, bits, &projections[k]));
        for (size_t c = 0; c < 128; ++c) error += std::pow(static_cast<double>(row.x[c] - back[c]), 2);
        power += static_cast<double>(row.s2);
      }
      const double expected = left[bits - 1] * (std::numbers::pi / 2 - k);
      EXPECT_NEAR(error / power / expected, 1, 0.06) << k << " " << bits;
      RecordProperty("nmse_" + std::to_string(k) + "_" + std::to_string(bits), std::to_string(error / power));
    }
  }
}

}  // namespace
}  // namespace tersekv
