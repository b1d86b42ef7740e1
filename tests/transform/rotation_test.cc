// SPDX-License-Identifier: Apache-2.0
#include "src/transform/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/transform/sign_stream.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576};
constexpr RotationKind kKinds[] = {RotationKind::kNone, RotationKind::kHadamard, RotationKind::kHadamard2,
                                   RotationKind::kHaar};

RotationOp Make(RotationKind kind, int d) {
  return RotationOp(kind, 11, 3, 2, true, d, kind == RotationKind::kHaar ? HaarMatrix(11, d) : nullptr);
}

// [d, d] row-major: column c is R e_c (or R^T e_c).
std::vector<float> MatrixOf(const RotationOp& op, bool transposed) {
  const size_t d = static_cast<size_t>(op.d());
  std::vector<float> matrix(d * d), x(d), scratch(d);
  for (size_t c = 0; c < d; ++c) {
    x.assign(d, 0);
    x[c] = 1;
    transposed ? op.ApplyTransposed(x.data(), scratch.data()) : op.Apply(x.data(), scratch.data());
    for (size_t r = 0; r < d; ++r) matrix[r * d + c] = x[r];
  }
  return matrix;
}

std::vector<float> HadamardMatrix(int dim) {
  const size_t d = static_cast<size_t>(dim);
  std::vector<float> h(d * d), x(d);
  for (size_t c = 0; c < d; ++c) {
    x.assign(d, 0);
    x[c] = 1;
    HadamardRow(x.data(), dim);
    for (size_t r = 0; r < d; ++r) h[r * d + c] = x[r];
  }
  return h;
}

TEST(Rotation, RowsAreOrthonormal) {
  for (const RotationKind kind : kKinds) {
    for (const int dim : kDims) {
      const std::vector<float> m = MatrixOf(Make(kind, dim), false);
      const size_t d = static_cast<size_t>(dim);
      double worst = 0;
      for (size_t a = 0; a < d; ++a) {
        for (size_t b = 0; b <= a; ++b) {
          double dot = 0;
          for (size_t c = 0; c < d; ++c) dot += static_cast<double>(m[a * d + c]) * static_cast<double>(m[b * d + c]);
          worst = std::max(worst, std::fabs(dot - (a == b ? 1 : 0)));
        }
      }
      EXPECT_LT(worst, 3e-7) << static_cast<int>(kind) << " " << dim;
    }
  }
}

TEST(Rotation, TransposedIsTheTransposedMatrix) {
  for (const RotationKind kind : kKinds) {
    for (const int dim : kDims) {
      const RotationOp op = Make(kind, dim);
      const std::vector<float> m = MatrixOf(op, false), t = MatrixOf(op, true);
      const size_t d = static_cast<size_t>(dim);
      for (size_t r = 0; r < d; ++r) {
        for (size_t c = 0; c < d; ++c) {
          const float tolerance = kind == RotationKind::kHadamard2 ? 1e-6f : 0;  // its sums round
          ASSERT_NEAR(m[r * d + c], t[c * d + r], tolerance) << static_cast<int>(kind) << " " << dim;
        }
      }
    }
  }
}

TEST(Rotation, TransposedUndoesApply) {
  for (const RotationKind kind : kKinds) {
    for (const int dim : kDims) {
      const RotationOp op = Make(kind, dim);
      const size_t d = static_cast<size_t>(dim);
      const std::vector<float> x = reference::GaussianRows(12, 1, dim);
      for (const bool transposed_first : {false, true}) {
        std::vector<float> y = x, scratch(d);
        if (transposed_first) op.ApplyTransposed(y.data(), scratch.data());
        op.Apply(y.data(), scratch.data());
        if (!transposed_first) op.ApplyTransposed(y.data(), scratch.data());
        for (size_t c = 0; c < d; ++c) ASSERT_NEAR(y[c], x[c], 5e-6) << static_cast<int>(kind) << " " << dim;
      }
    }
  }
}

TEST(Rotation, NoneIsTheIdentity) {
  const RotationOp op = Make(RotationKind::kNone, 64);
  const std::vector<float> x = reference::GaussianRows(13, 1, 64);
  std::vector<float> y = x, scratch(64);
  op.Apply(y.data(), scratch.data());
  EXPECT_EQ(y, x);
  op.ApplyTransposed(y.data(), scratch.data());
  EXPECT_EQ(y, x);
}

TEST(Rotation, HadamardIsTheSignedMatrix) {
  for (const int dim : kDims) {
    const RotationOp op = Make(RotationKind::kHadamard, dim);
    const size_t d = static_cast<size_t>(dim);
    EXPECT_EQ(op.sqrt_d(), std::sqrt(static_cast<float>(dim)));
    std::vector<float> signs(d);
    FillSigns(11, 3, 2, true, dim, signs.data());
    EXPECT_EQ(std::vector<float>(op.signs(), op.signs() + d), signs);
    const std::vector<float> m = MatrixOf(op, false), h = HadamardMatrix(dim);
    for (size_t i = 0; i < d * d; ++i) {
      ASSERT_EQ(m[i], h[i] * signs[i % d] * (1.0f / std::sqrt(static_cast<float>(dim)))) << i / d << " " << i % d;
    }
  }
}

// H S2 H S1 / d in double precision.
TEST(Rotation, Hadamard2IsTheProductOfTwoRounds) {
  for (const int dim : kDims) {
    const size_t d = static_cast<size_t>(dim);
    std::vector<float> first(d), second(d), scratch(d);
    FillSigns(11, 3, 2, true, dim, first.data());
    FillSigns(DerivedSeed(11, kSecondRound), 3, 2, true, dim, second.data());
    const std::vector<float> h = HadamardMatrix(dim);
    const std::vector<float> x = reference::GaussianRows(14, 1, dim);
    std::vector<double> inner(d), outer(d);
    for (size_t i = 0; i < d * d; ++i) inner[i / d] += static_cast<double>(h[i] * first[i % d] * x[i % d]);
    for (size_t i = 0; i < d * d; ++i) outer[i / d] += static_cast<double>(h[i] * second[i % d]) * inner[i % d];
    std::vector<float> y = x;
    const RotationOp op = Make(RotationKind::kHadamard2, dim);
    op.Apply(y.data(), scratch.data());
    for (size_t r = 0; r < d; ++r) ASSERT_NEAR(y[r], outer[r] / dim, 3e-6) << dim << " " << r;
    for (size_t c = 0; c < d; ++c) EXPECT_EQ(op.second_signs()[c], second[c] * (1.0f / op.sqrt_d()));
  }
}

TEST(Rotation, HaarIsTheMatrixGiven) {
  const auto matrix = HaarMatrix(11, 64);
  EXPECT_EQ(MatrixOf(Make(RotationKind::kHaar, 64), false), *matrix);
}

TEST(Rotation, GaussianIsTheMatrixGiven) {
  const int dim = 48;
  const auto matrix = GaussianMatrix(11, dim);
  const size_t d = static_cast<size_t>(dim);
  const RotationOp op(RotationKind::kGaussian, 11, 0, 0, false, dim, matrix);
  const std::vector<float> m = MatrixOf(op, false), t = MatrixOf(op, true);
  double sum = 0, square = 0, fourth = 0;
  for (size_t r = 0; r < d; ++r) {
    for (size_t c = 0; c < d; ++c) {
      const float entry = (*matrix)[c * d + r];
      ASSERT_EQ(m[r * d + c], entry * (1.0f / std::sqrt(static_cast<float>(dim))));
      ASSERT_EQ(m[r * d + c], t[c * d + r]);
      const double v = static_cast<double>(entry);
      sum += v;
      square += v * v;
      fourth += v * v * v * v;
    }
  }
  const double n = static_cast<double>(d * d);
  EXPECT_NEAR(sum / n, 0, 0.08);
  EXPECT_NEAR(square / n, 1, 0.12);
  EXPECT_NEAR(fourth / n, 3, 0.8);
  EXPECT_NE(*matrix, *GaussianMatrix(12, dim));
}

TEST(HaarMatrix, DependsOnSeedAndSizeOnly) {
  for (const int d : {32, 128}) {
    EXPECT_EQ(*HaarMatrix(5, d), *HaarMatrix(5, d));
    EXPECT_NE(*HaarMatrix(5, d), *HaarMatrix(6, d));
    EXPECT_EQ(HaarMatrix(5, d)->size(), static_cast<size_t>(d * d));
  }
}

// Moments of one entry of a Haar matrix: mean 0, variance 1/d, fourth moment 3 / (d (d + 2)).
TEST(HaarMatrix, MomentsOfEntries) {
  for (const int d : {64, 256}) {
    double sum = 0, square = 0, fourth = 0;
    const auto matrix = HaarMatrix(0, d);
    for (const float entry : *matrix) {
      const double v = static_cast<double>(entry);
      sum += v;
      square += v * v;
      fourth += v * v * v * v;
    }
    const double n = static_cast<double>(d) * d;
    EXPECT_LT(std::fabs(sum / n), 4 / std::sqrt(n * d)) << d;
    EXPECT_NEAR(square / n * d, 1, 1e-6) << d;
    EXPECT_NEAR(fourth / n * d * (d + 2) / 3, 1, 0.15) << d;
  }
}

// A QR decomposition whose signs are not put right is not Haar: its diagonal leans to one side.
TEST(HaarMatrix, EntriesHaveNoBiasOverSeeds) {
  constexpr int kSeeds = 2000, kDim = 8;
  double sum[kDim * kDim] = {};
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto matrix = HaarMatrix(seed, kDim);
    for (size_t i = 0; i < matrix->size(); ++i) sum[i] += static_cast<double>((*matrix)[i]);
  }
  for (const double s : sum) EXPECT_LT(std::fabs(s / kSeeds), 4.5 / std::sqrt(kSeeds * static_cast<double>(kDim)));
}

}  // namespace
}  // namespace tersekv
