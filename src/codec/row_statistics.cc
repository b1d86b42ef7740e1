// SPDX-License-Identifier: Apache-2.0
#include "src/codec/row_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tersekv {
namespace {
constexpr double kScaleFloor = 1e-3;  // of the head's largest
}  // namespace

void RowMean(const float* rows, size_t n, int d, float* mean) {
  for (int c = 0; c < d; ++c) {
    double sum = 0;
    for (size_t t = 0; t < n; ++t)
      sum += static_cast<double>(rows[t * static_cast<size_t>(d) + static_cast<size_t>(c)]);
    mean[c] = static_cast<float>(sum / static_cast<double>(n));
  }
}

void RowScale(const float* rows, size_t n, int d, const float* mean, float* scale, float* inv_scale) {
  std::array<double, 1024> s;  // the largest head_dim; measuring runs where nothing may allocate
  double largest = 0;
  for (int c = 0; c < d; ++c) {
    double sum = 0;
    for (size_t t = 0; t < n; ++t) {
      const double v =
          static_cast<double>(rows[t * static_cast<size_t>(d) + static_cast<size_t>(c)]) - static_cast<double>(mean[c]);
      sum += v * v;
    }
    s[static_cast<size_t>(c)] = std::sqrt(std::sqrt(sum / static_cast<double>(n)));
    largest = std::max(largest, s[static_cast<size_t>(c)]);
  }
  double log_sum = 0;
  for (int c = 0; c < d; ++c) {
    double& v = s[static_cast<size_t>(c)];
    v = largest > 0 ? std::max(v, kScaleFloor * largest) : 1.0;
    log_sum += std::log(v);
  }
  const double geometric_mean = std::exp(log_sum / d);
  for (int c = 0; c < d; ++c) {
    scale[c] = static_cast<float>(s[static_cast<size_t>(c)] / geometric_mean);
    inv_scale[c] = 1.0f / scale[c];
  }
}

}  // namespace tersekv
