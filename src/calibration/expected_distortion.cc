// SPDX-License-Identifier: Apache-2.0
// ExpectedDistortion: what each codec of the list should have on Gaussian rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "src/calibration/distortion.h"
#include "src/codec/list.h"
#include "tersekv/codec.h"

namespace tersekv {
namespace {

// E[range^2] of n Gaussian values, by numeric integration, at n = 2^(i + 4).
constexpr std::array<double, 6> kRangeSquare = {13.0372, 17.6064, 22.3748, 27.2763, 32.2710, 37.3343};

// Affine levels between the smallest and the largest of n values, which themselves have no error.
double AffineDistortion(int bits, double n) {
  const double at = std::clamp(std::log2(n) - 4, 0.0, 5.0);
  const size_t i = std::min(static_cast<size_t>(at), kRangeSquare.size() - 2);
  const double range2 = std::lerp(kRangeSquare[i], kRangeSquare[i + 1], at - static_cast<double>(i));
  return range2 / (12 * std::pow((1 << bits) - 1, 2)) * (1 - 2 / n);
}

// The residual of b - 1 bits, times what one sign a channel leaves of it: pi / 2 with a Gaussian projection, pi / 2 - 1
// with an orthogonal one.
double ProdDistortion(int bits, int head_dim, bool gaussian) {
  const double residual = bits == 2 ? 1 - 2 / std::numbers::pi : LloydMaxDistortion(bits - 1, head_dim);
  return residual * (std::numbers::pi / 2 - (gaussian ? 0 : 1));
}

// Experiments with the trained tables in floating point: by bits - 2, head_dim 64, 128, 256.
constexpr double kTrellis[3][3] = {{.0734, .0731, .0734}, {.0201, .0202, .0204}, {.00589, .0060, .00605}};
// By 2 bits - 4: a 2-D Lloyd-Max codebook.
constexpr double kVq2[] = {.10625, .05655, .02934, .01513, .00771};

// Before the stored norm: of levels in unit-variance scale.
std::optional<double> LevelDistortion(const KvSpec& spec, Kv side, int head_dim) {
  const SideSpec& s = side == Kv::kK ? spec.k : spec.v;
  const int bits = static_cast<int>(s.bits);
  switch (s.family) {
    case Family::kF32:
      return 0;
    case Family::kInt8:
    case Family::kLloydMax:
      return LloydMaxDistortion(bits, head_dim);
    case Family::kTrellis:
      return kTrellis[bits - 2][head_dim < 96 ? 0 : head_dim < 192 ? 1 : 2];
    case Family::kVq2:
      return kVq2[static_cast<size_t>(2 * s.bits) - 4];
    case Family::kProd:
      return ProdDistortion(bits, head_dim, spec.rotation == Rotation::kHaar);
    case Family::kKivi:
      return AffineDistortion(bits, side == Kv::kK ? spec.page : spec.group > 0 ? spec.group : head_dim);
    case Family::kFp8:
    case Family::kFp8Head:
    case Family::kFp8Tensor:
      return 7.0e-4;
    case Family::kMxfp4:
      return .0132;
    case Family::kNvfp4:
      return .00755;
    case Family::kQ8_0:
      return 2.9e-5;
    case Family::kQ5_0:
      return .00182;
    case Family::kQ4_0:
      return .00739;
    case Family::kIq4Nl:
      return .00576;
    default:
      return {};
  }
}

}  // namespace

std::optional<double> ExpectedDistortion(const KvSpec& spec, Kv side, int head_dim) {
  const std::optional<double> d = LevelDistortion(spec, side, head_dim);
  const SideSpec& s = side == Kv::kK ? spec.k : spec.v;
  if (!d || s.family == Family::kProd) return d;  // prod stores the norm itself
  switch (s.norm) {
    case NormMode::kUnbiased:  // longer by 1 / (1 - D), so that <x, x'> = |x|^2
      return *d / (1 - *d);
    case NormMode::kMatch:  // as long as x
      return 2 - 2 * std::sqrt(1 - *d);
    default:
      return d;
  }
}

}  // namespace tersekv
