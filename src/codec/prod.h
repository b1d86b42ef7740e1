// SPDX-License-Identifier: Apache-2.0
// TurboQuant_prod (Zandieh et al. 2025, algorithm 2): b - 1 bits of Lloyd-Max levels, then one bit a channel of the
// residual by QJL: signs of a random projection S. Unbiased over S.
//
// With u = R x' / n, n = |x'|, unit variance, r = what the levels leave of u, gamma = |r| / sqrt(d) and
// z = sign(S r) (of 0: +1), it decodes to R x' = n (levels / sqrt(d) + factor gamma S^T z). At b = 8 the levels are the
// grid of 7 bits, and n is the row's largest |R x'| instead: levels count in 1/63 of it.
//
// Record: indices [d], b - 1 bits each | signs [d], one bit each, 1 = negative | n fp16 | gamma fp16. Bits 2 to 8; 1
// works too, without indices.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numbers>
#include <vector>

#include "src/codec/lloyd_max.h"
#include "src/codec/record.h"
#include "src/transform/sign_stream.h"

namespace tersekv {

struct Prod {
  static constexpr Family kFamily = Family::kProd;
  static constexpr bool kUnitVariance = true;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 8;
  static size_t IndexBytes(const RecordShape& shape) {
    return static_cast<size_t>(shape.d) * (static_cast<size_t>(shape.bits) - 1) / 8;
  }
  static size_t Bytes(const RecordShape& shape) { return IndexBytes(shape) + static_cast<size_t>(shape.d) / 8 + 4; }
  // levels, residual, projection, running sums; codes
  static size_t ScratchBytes(const RecordShape& shape) { return 13 * static_cast<size_t>(shape.d) + 32 * 4; }
};
static_assert(RecordTag<Prod>);

namespace prod_internal {
inline constexpr int k1[] = {1};
inline constexpr LevelTable kOneBit = lloyd_max_internal::FromPositive(1, 0.797885f, k1);  // sqrt(2 / pi)
inline constexpr LevelTable kNoBits = {.count = 1};
}  // namespace prod_internal

// Levels under `bits` bits of prod.
constexpr const LevelTable& ProdLevels(int bits) {
  return bits == 1 ? prod_internal::kNoBits : bits == 2 ? prod_internal::kOneBit : LevelsOf(bits - 1);
}

// Makes the estimate unbiased. Gaussian S: sqrt(pi / 2) / d. sqrt(d) times an orthogonal S: 1 / (d^1.5 E|u_1|) of a
// uniform unit vector, E|u_1| = Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2)), by its series in 1 / d (1e-6 at d = 8).
inline float ProdFactor(RotationKind projection, int d) {
  const double n = d, x = n / 2;
  if (projection == RotationKind::kGaussian) return static_cast<float>(std::sqrt(std::numbers::pi / 2) / n);
  const double series =
      1 + (1.0 / 8 + (1.0 / 128 + (-5.0 / 1024 + (-21.0 / 32768 + 399.0 / 262144 / x) / x) / x) / x) / x;
  return static_cast<float>(std::sqrt(std::numbers::pi * x) / (n * std::sqrt(n) * series));
}

// The paper's Gaussian S beside its Haar rotation (and where no Hadamard order fits), else a randomised Hadamard
// transform of its own, which has a third of the variance.
constexpr RotationKind ProjectionKindOf(Rotation rotation, int d) {
  return rotation == Rotation::kHaar || !HadamardOrderSupported(d) ? RotationKind::kGaussian : RotationKind::kHadamard;
}

// gaussian: GaussianMatrix(DerivedSeed(seed, kProjection), d), shared by every head; null for Hadamard.
inline RotationOp MakeProjection(RotationKind kind, uint64_t seed, int layer, int kv_head, bool value_side, int d,
                                 std::shared_ptr<const std::vector<float>> gaussian = nullptr) {
  return RotationOp(kind, DerivedSeed(seed, kProjection), layer, kv_head, value_side, d, std::move(gaussian));
}

}  // namespace tersekv
