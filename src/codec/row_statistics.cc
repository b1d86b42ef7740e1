// SPDX-License-Identifier: Apache-2.0
#include "src/codec/row_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/e4m3.h"
#include "src/base/lanes.h"

#define TERSEKV_INL_NAMESPACE statistics_plain
#include "src/codec/normalise-inl.h"

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
  for (int c = 0; c < d; ++c) {
    double sum = 0;
    for (size_t t = 0; t < n; ++t) {
      const double v =
          static_cast<double>(rows[t * static_cast<size_t>(d) + static_cast<size_t>(c)]) - static_cast<double>(mean[c]);
      sum += v * v;
    }
    s[static_cast<size_t>(c)] = std::sqrt(std::sqrt(sum / static_cast<double>(n)));
  }
  NormaliseScale(s.data(), static_cast<size_t>(d), scale);
  for (int c = 0; c < d; ++c) inv_scale[c] = 1.0f / scale[c];
}

void NormaliseScale(double* wanted, size_t d, float* scale) {
  const double largest = *std::max_element(wanted, wanted + d);
  double log_sum = 0;
  for (size_t c = 0; c < d; ++c) {
    wanted[c] = largest > 0 ? std::max(wanted[c], kScaleFloor * largest) : 1.0;
    log_sum += std::log(wanted[c]);
  }
  const double geometric_mean = std::exp(log_sum / static_cast<double>(d));
  for (size_t c = 0; c < d; ++c) scale[c] = static_cast<float>(wanted[c] / geometric_mean);
}

float RowPeak(const HeadCodec& codec, const float* rows, size_t n, float* row, float* scratch) {
  const size_t d = static_cast<size_t>(codec.d);
  float peak = 0;
  for (size_t t = 0; t < n; ++t) {
    std::copy(rows + t * d, rows + (t + 1) * d, row);
    statistics_plain::Normalise(ScalarLanes(), codec, row);
    codec.rotation->Apply(row, scratch);
    for (size_t c = 0; c < d; ++c) peak = std::max(peak, std::fabs(row[c]));
  }
  return peak;
}

float MomentPeak(const float* mean, const float* variance, const float* inv_scale, int d, bool rotated) {
  double peak = 0, square = 0;
  for (int c = 0; c < d; ++c) {
    const double m = mean != nullptr ? std::fabs(static_cast<double>(mean[c])) : 0.0;
    const double factor = inv_scale != nullptr ? static_cast<double>(inv_scale[c]) : 1.0;
    const double v = static_cast<double>(variance[c]);
    peak = std::max(peak, (m + 6 * std::sqrt(v)) * factor);
    square += (m * m + v) * factor * factor;
  }
  return static_cast<float>(std::min(rotated ? std::sqrt(square) : peak, 1e38));
}

float SharedScaleOfPeak(float peak) {
  if (!(peak > 0)) return 1;
  int exponent;
  std::frexp(std::min(peak, 1e38f) / kE4M3Max, &exponent);  // peak / 448 < 2^exponent
  return std::ldexp(1.0f, std::clamp(exponent + 1, -60, 60));
}

void ApplySharedScale(float shared, int d, float* scale, float* inv_scale) {
  for (int c = 0; c < d; ++c) {
    scale[c] *= shared;
    inv_scale[c] *= 1.0f / shared;
  }
}

}  // namespace tersekv
