// SPDX-License-Identifier: Apache-2.0
// The rotation of one (layer, KV head, side): what a row goes through between mean/scale and codes.
//
// Forward gives y = sqrt(d) * R x with R orthogonal: unnormalised H diag(signs) x for h1,
// H diag(second_signs) H diag(signs) x for h2, sqrt(d) x for none, sqrt(d) Q x for haar (rotate-inl.h). Queries and
// outputs use the orthonormal R itself. kGaussian is no rotation but a projection: sqrt(d) R = S with independent
// N(0, 1) entries.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/transform/hadamard.h"

namespace tersekv {

enum class RotationKind : uint8_t { kNone, kHadamard, kHaar, kHadamard2, kGaussian };

// A Haar-distributed orthogonal matrix [d, d], row-major, from a counter-based Gaussian stream (Stewart 1980: QR of a
// Gaussian matrix with the signs of diag(R)). One matrix a (seed, d).
std::shared_ptr<const std::vector<float>> HaarMatrix(uint64_t seed, int d);

// S for kGaussian: [d, d] of N(0, 1) from the same kind of stream, column-major.
std::shared_ptr<const std::vector<float>> GaussianMatrix(uint64_t seed, int d);

class RotationOp {
 public:
  RotationOp() = default;
  // matrix: HaarMatrix or GaussianMatrix of (seed, d), shared by every head; null unless the kind needs one.
  RotationOp(RotationKind kind, uint64_t seed, int layer, int kv_head, bool value_side, int d,
             std::shared_ptr<const std::vector<float>> matrix = nullptr);

  int d() const { return d_; }
  RotationKind kind() const { return kind_; }

  float sqrt_d() const { return sqrt_d_; }
  const float* signs() const { return signs_.data(); }              // [d] of +1 / -1, kHadamard and kHadamard2
  const float* second_signs() const { return signs_.data() + d_; }  // [d] of +-(1 / sqrt(d)), kHadamard2
  const float* matrix() const { return matrix_->data(); }           // [d, d], kHaar row-major, kGaussian column-major

  // x: [d] in place: R x and R^T x. scratch: [d].
  void Apply(float* x, float* scratch) const;
  void ApplyTransposed(float* x, float* scratch) const;

 private:
  RotationKind kind_ = RotationKind::kNone;
  int d_ = 0;
  float sqrt_d_ = 0, inv_sqrt_d_ = 0;
  std::vector<float> signs_;                          // [d] or, kHadamard2, [2, d]
  std::shared_ptr<const std::vector<float>> matrix_;  // [d, d], kHaar and kGaussian
};

}  // namespace tersekv
