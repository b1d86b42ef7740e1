// SPDX-License-Identifier: Apache-2.0
#include "src/transform/rotation.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "src/base/lanes.h"
#include "src/transform/hadamard.h"
#include "src/transform/sign_stream.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/transform/rotate-inl.h"

namespace tersekv {
namespace {

// Two independent N(0, 1) values per counter (Box and Muller 1958).
void GaussianPair(uint64_t seed, uint64_t counter, double* out) {
  const double u = (static_cast<double>(Mix(Mix(seed) ^ (2 * counter)) >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(Mix(Mix(seed) ^ (2 * counter + 1)) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * std::log(u));
  out[0] = radius * std::cos(2.0 * std::numbers::pi * v);
  out[1] = radius * std::sin(2.0 * std::numbers::pi * v);
}

}  // namespace

void HadamardRow(float* y, int d) { plain::Hadamard(ScalarLanes(), y, d); }

std::shared_ptr<const std::vector<float>> HaarMatrix(uint64_t seed, int d) {
  const size_t n = static_cast<size_t>(d);
  std::vector<double> q(n * n);
  for (size_t i = 0; i + 1 < q.size(); i += 2) GaussianPair(seed ^ 0x48616172u, i / 2, &q[i]);
  // Gram-Schmidt on rows, twice for orthogonality to the last bit; it keeps the diagonal of R positive, which is what
  // makes the result Haar.
  for (size_t r = 0; r < n; ++r) {
    double* row = &q[r * n];
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t p = 0; p < r; ++p) {
        const double* other = &q[p * n];
        double dot = 0;
        for (size_t c = 0; c < n; ++c) dot += row[c] * other[c];
        for (size_t c = 0; c < n; ++c) row[c] -= dot * other[c];
      }
    }
    double norm = 0;
    for (size_t c = 0; c < n; ++c) norm += row[c] * row[c];
    norm = std::sqrt(norm);
    for (size_t c = 0; c < n; ++c) row[c] /= norm;
  }
  return std::make_shared<const std::vector<float>>(q.begin(), q.end());
}

RotationOp::RotationOp(RotationKind kind, uint64_t seed, int layer, int kv_head, bool value_side, int d,
                       std::shared_ptr<const std::vector<float>> haar)
    : kind_(kind),
      d_(d),
      sqrt_d_(std::sqrt(static_cast<float>(d))),
      inv_sqrt_d_(1.0f / std::sqrt(static_cast<float>(d))),
      haar_(std::move(haar)) {
  if (kind == RotationKind::kHadamard) {
    signs_.resize(static_cast<size_t>(d));
    FillSigns(seed, layer, kv_head, value_side, d, signs_.data());
  }
}

void RotationOp::Apply(float* x, float* scratch) const {
  if (kind_ == RotationKind::kNone) return;
  if (kind_ == RotationKind::kHadamard) {
    for (int c = 0; c < d_; ++c) x[c] *= signs_[static_cast<size_t>(c)];
    HadamardRow(x, d_);
    for (int c = 0; c < d_; ++c) x[c] *= inv_sqrt_d_;
    return;
  }
  for (int r = 0; r < d_; ++r) {
    const float* row = haar_->data() + static_cast<size_t>(r) * d_;
    float sum = 0;
    for (int c = 0; c < d_; ++c) sum += row[c] * x[c];
    scratch[r] = sum;
  }
  std::memcpy(x, scratch, sizeof(float) * static_cast<size_t>(d_));
}

void RotationOp::ApplyTransposed(float* x, float* scratch) const {
  if (kind_ == RotationKind::kNone) return;
  if (kind_ == RotationKind::kHadamard) {  // H is symmetric
    HadamardRow(x, d_);
    for (int c = 0; c < d_; ++c) x[c] *= signs_[static_cast<size_t>(c)] * inv_sqrt_d_;
    return;
  }
  std::memset(scratch, 0, sizeof(float) * static_cast<size_t>(d_));
  for (int r = 0; r < d_; ++r) {
    const float* row = haar_->data() + static_cast<size_t>(r) * d_;
    for (int c = 0; c < d_; ++c) scratch[c] += row[c] * x[r];
  }
  std::memcpy(x, scratch, sizeof(float) * static_cast<size_t>(d_));
}

}  // namespace tersekv
