// SPDX-License-Identifier: Apache-2.0
#include "src/transform/rotation.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <type_traits>

#include "src/base/lanes.h"
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
void HadamardRowTransposed(float* y, int d) { plain::Hadamard(ScalarLanes(), y, d, true); }

std::shared_ptr<const std::vector<float>> GaussianMatrix(uint64_t seed, int d) {
  std::vector<float> s(static_cast<size_t>(d) * static_cast<size_t>(d));
  for (size_t i = 0; i < s.size(); i += 2) {
    double pair[2];
    GaussianPair(seed ^ 0x47617573u, i / 2, pair);
    s[i] = static_cast<float>(pair[0]);
    if (i + 1 < s.size()) s[i + 1] = static_cast<float>(pair[1]);
  }
  return std::make_shared<const std::vector<float>>(std::move(s));
}

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
                       std::shared_ptr<const std::vector<float>> matrix)
    : kind_(kind),
      d_(d),
      sqrt_d_(std::sqrt(static_cast<float>(d))),
      inv_sqrt_d_(1.0f / std::sqrt(static_cast<float>(d))),
      matrix_(std::move(matrix)) {
  const size_t n = static_cast<size_t>(d);
  if (kind == RotationKind::kHadamard || kind == RotationKind::kHadamard2) {
    signs_.resize(kind == RotationKind::kHadamard ? n : 2 * n);
    FillSigns(seed, layer, kv_head, value_side, d, signs_.data());
  }
  if (kind == RotationKind::kHadamard2) {
    FillSigns(DerivedSeed(seed, kSecondRound), layer, kv_head, value_side, d, signs_.data() + n);
    for (size_t c = n; c < 2 * n; ++c) signs_[c] *= inv_sqrt_d_;
  }
}

void RotationOp::Apply(float* x, float* scratch) const {
  const size_t n = static_cast<size_t>(d_);
  switch (kind_) {
    case RotationKind::kNone:
      return;
    case RotationKind::kHadamard:
    case RotationKind::kHadamard2:
    case RotationKind::kGaussian:
      plain::RotateForward(ScalarLanes(), *this, x, scratch);
      for (size_t c = 0; c < n; ++c) x[c] *= inv_sqrt_d_;
      return;
    case RotationKind::kHaar:
      for (size_t r = 0; r < n; ++r) {
        const float* row = matrix() + r * n;
        float sum = 0;
        for (size_t c = 0; c < n; ++c) sum += row[c] * x[c];
        scratch[r] = sum;
      }
      std::memcpy(x, scratch, sizeof(float) * n);
      return;
  }
}

void RotationOp::ApplyTransposed(float* x, float* scratch) const {
  const size_t n = static_cast<size_t>(d_);
  switch (kind_) {
    case RotationKind::kNone:
      return;
    case RotationKind::kHadamard2:
      HadamardRowTransposed(x, d_);
      for (size_t c = 0; c < n; ++c) x[c] *= second_signs()[c];
      [[fallthrough]];
    case RotationKind::kHadamard:
      HadamardRowTransposed(x, d_);
      for (size_t c = 0; c < n; ++c) x[c] *= signs_[c] * inv_sqrt_d_;
      return;
    case RotationKind::kGaussian:
      for (size_t c = 0; c < n; ++c) {
        const float* column = matrix() + c * n;
        float sum = 0;
        for (size_t r = 0; r < n; ++r) sum += column[r] * x[r];
        scratch[c] = sum * inv_sqrt_d_;
      }
      std::memcpy(x, scratch, sizeof(float) * n);
      return;
    case RotationKind::kHaar:
      std::memset(scratch, 0, sizeof(float) * n);
      for (size_t r = 0; r < n; ++r) {
        const float* row = matrix() + r * n;
        for (size_t c = 0; c < n; ++c) scratch[c] += row[c] * x[r];
      }
      std::memcpy(x, scratch, sizeof(float) * n);
      return;
  }
}

}  // namespace tersekv
