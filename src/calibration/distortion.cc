// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/distortion.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "src/base/check.h"

namespace tersekv {
namespace {

constexpr double kScaleRounding = 2.75e-6;  // of the bf16 scale, whatever the width (docs/numerics.md)
constexpr int kMostTableBits = 6;

struct Row {
  double inverse_dim;
  std::array<double, kMostTableBits - kLeastCodeBits + 1> d;  // by bits - 2
};
// Exact distortion of Lloyd-Max levels for one coordinate of a uniform unit vector (TurboQuant's codebooks): linear in
// 1/head_dim to 1e-4.
constexpr std::array<Row, 4> kRows = {{
    {1.0 / 512, {.1171107, .03440167, .009454177, .002491275, 6.406436e-4}},
    {1.0 / 256, {.1167400, .03425600, .009407529, .002477942, 6.370651e-4}},
    {1.0 / 128, {.1160001, .03396593, .009314788, .002451460, 6.299608e-4}},
    {1.0 / 64, {.1145258, .03339083, .009131518, .002399227, 6.159629e-4}},
}};
// What integer levels add (decision 0001, section 2).
constexpr std::array<double, 5> kIntegerLevels = {1.002, 1.001, 1.003, 1.009, 1.031};

// 7 and 8 bits: the uniform grid up to the row's maximum, measured at 64, 128, 256 (there): linear in log2(head_dim).
double GridDistortion(int bits, double head_dim) {
  const double octaves = std::log2(std::max(head_dim, 8.0) / 64);
  return bits == 7 ? 1.43e-4 + .27e-4 * octaves : 3.5e-5 + .7e-5 * octaves;
}

}  // namespace

double LloydMaxDistortion(int bits, int head_dim) {
  TERSEKV_CHECK(bits >= kLeastCodeBits && bits <= kMostCodeBits && head_dim > 0);
  if (bits > kMostTableBits) return GridDistortion(bits, head_dim) + kScaleRounding;
  const size_t b = static_cast<size_t>(bits - kLeastCodeBits);
  const double x = std::clamp(1.0 / head_dim, 0.0, 1.0 / 32);
  size_t i = 0;
  while (i + 2 < kRows.size() && x > kRows[i + 1].inverse_dim) ++i;
  const Row &low = kRows[i], &high = kRows[i + 1];
  const double t = (x - low.inverse_dim) / (high.inverse_dim - low.inverse_dim);
  return (low.d[b] + t * (high.d[b] - low.d[b])) * kIntegerLevels[b] + kScaleRounding;
}

}  // namespace tersekv
