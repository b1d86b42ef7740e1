// SPDX-License-Identifier: Apache-2.0
// The rotation of one (layer, KV head, side): what a row goes through between mean/scale and codes.
//
// Forward gives y = sqrt(d) * R x with R orthogonal: unnormalised H diag(signs) x for h1, sqrt(d) x for none,
// sqrt(d) Q x for haar (rotate-inl.h). Queries and outputs use the orthonormal R itself.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tersekv {

enum class RotationKind : uint8_t { kNone, kHadamard, kHaar };

// A Haar-distributed orthogonal matrix [d, d], row-major, from a counter-based Gaussian stream (Stewart 1980: QR of a
// Gaussian matrix with the signs of diag(R)). One matrix a (seed, d).
std::shared_ptr<const std::vector<float>> HaarMatrix(uint64_t seed, int d);

class RotationOp {
 public:
  RotationOp() = default;
  // haar: the matrix of (seed, d), shared by every head; null unless kHaar.
  RotationOp(RotationKind kind, uint64_t seed, int layer, int kv_head, bool value_side, int d,
             std::shared_ptr<const std::vector<float>> haar = nullptr);

  int d() const { return d_; }
  RotationKind kind() const { return kind_; }

  float sqrt_d() const { return sqrt_d_; }
  const float* signs() const { return signs_.data(); }  // [d] of +1 / -1, kHadamard
  const float* haar() const { return haar_->data(); }   // [d, d], kHaar

  // x: [d] in place: R x and R^T x. scratch: [d].
  void Apply(float* x, float* scratch) const;
  void ApplyTransposed(float* x, float* scratch) const;

 private:
  RotationKind kind_ = RotationKind::kNone;
  int d_ = 0;
  float sqrt_d_ = 0, inv_sqrt_d_ = 0;
  std::vector<float> signs_;                        // [d], kHadamard
  std::shared_ptr<const std::vector<float>> haar_;  // [d, d], kHaar
};

}  // namespace tersekv
