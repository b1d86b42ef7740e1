// SPDX-License-Identifier: Apache-2.0
#include "src/transform/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "src/transform/sign_stream.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {32, 64, 128, 256, 512};
constexpr RotationKind kKinds[] = {RotationKind::kNone, RotationKind::kHadamard, RotationKind::kHaar};

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
        for (size_t c = 0; c < d; ++c) ASSERT_EQ(m[r * d + c], t[c * d + r]) << static_cast<int>(kind) << " " << dim;
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

TEST(Rotation, HadamardIsTheSignedSylvesterMatrix) {
  for (const int dim : kDims) {
    const RotationOp op = Make(RotationKind::kHadamard, dim);
    const size_t d = static_cast<size_t>(dim);
    EXPECT_EQ(op.sqrt_d(), std::sqrt(static_cast<float>(dim)));
    std::vector<float> signs(d);
    FillSigns(11, 3, 2, true, dim, signs.data());
    EXPECT_EQ(std::vector<float>(op.signs(), op.signs() + d), signs);
    const std::vector<float> m = MatrixOf(op, false);
    for (size_t r = 0; r < d; ++r) {
      for (size_t c = 0; c < d; ++c) {
        const float entry = std::popcount(r & c) % 2 == 0 ? signs[c] : -signs[c];
        ASSERT_EQ(m[r * d + c], entry * (1.0f / std::sqrt(static_cast<float>(dim)))) << r << " " << c;
      }
    }
  }
}

TEST(Rotation, HaarIsTheMatrixGiven) {
  const auto matrix = HaarMatrix(11, 64);
  EXPECT_EQ(MatrixOf(Make(RotationKind::kHaar, 64), false), *matrix);
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
