// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/moments.h"

#include "src/base/check.h"

namespace tersekv {

void Moments::Add(const float* row) {
  const double inverse = 1.0 / static_cast<double>(++count_);
  for (size_t c = 0; c < mean_.size(); ++c) {
    const double delta = static_cast<double>(row[c]) - mean_[c];
    mean_[c] += delta * inverse;
    m2_[c] += delta * (static_cast<double>(row[c]) - mean_[c]);
  }
}

void Moments::Merge(const Moments& other) {
  TERSEKV_CHECK(mean_.size() == other.mean_.size());
  if (other.count_ == 0) return;
  const double a = static_cast<double>(count_), b = static_cast<double>(other.count_), n = a + b;
  for (size_t c = 0; c < mean_.size(); ++c) {
    const double delta = other.mean_[c] - mean_[c];
    mean_[c] += delta * (b / n);
    m2_[c] += other.m2_[c] + delta * delta * (a * b / n);
  }
  count_ += other.count_;
}

}  // namespace tersekv
