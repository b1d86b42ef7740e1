// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/sensitivity.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/calibration/distortion.h"

namespace tersekv {
namespace {

constexpr double kLeastKl = 1e-12;  // below what any measurement resolves; keeps logarithms finite
constexpr double kLeastSlope = .5, kMostSlope = 2;

}  // namespace

double InterpolateKl(std::span<const UnitSensitivity::Anchor> anchors, int bits, int head_dim) {
  TERSEKV_CHECK(!anchors.empty());
  size_t low = 0;  // the two anchors around `bits`, or the last two before or after it
  while (low + 2 < anchors.size() && bits > anchors[low + 1].bits) ++low;
  const auto& a = anchors[low];
  const auto log_d = [&](int b) { return std::log(LloydMaxDistortion(b, head_dim)); };
  const auto log_kl = [](double kl) { return std::log(std::max(kl, kLeastKl)); };
  double slope = 1;
  if (low + 1 < anchors.size()) {
    const auto& b = anchors[low + 1];
    slope = (log_kl(a.kl) - log_kl(b.kl)) / (log_d(a.bits) - log_d(b.bits));
    slope = std::clamp(slope, kLeastSlope, kMostSlope);
  }
  return std::exp(log_kl(a.kl) + slope * (log_d(bits) - log_d(a.bits)));
}

SensitivityModel::SensitivityModel(std::vector<LayerShape> layers, std::vector<UnitSensitivity> sensitivities,
                                   int protect_first, int protect_last)
    : layers_(std::move(layers)),
      sensitivities_(std::move(sensitivities)),
      protect_first_(static_cast<size_t>(protect_first)),
      protect_last_(static_cast<size_t>(protect_last)) {
  TERSEKV_CHECK(sensitivities_.size() == 2 * layers_.size());
}

bool SensitivityModel::Protected(size_t layer) const {
  return layer < protect_first_ || layer + protect_last_ >= layers_.size();
}

double SensitivityModel::Kl(size_t layer, Kv side, int bits) const {
  const UnitSensitivity& unit = sensitivities_[2 * layer + static_cast<size_t>(side)];
  const LayerShape& shape = layers_[layer];
  return InterpolateKl(unit.anchors, bits, side == Kv::kK && !shape.latent ? shape.head_dim_k : shape.head_dim_v);
}

AllocationUnits SensitivityModel::Units(const JointFactors& factors) const {
  AllocationUnits units;
  for (size_t l = 0; l < layers_.size(); ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      auto& options = units.emplace_back();
      if (layers_[l].latent && side == Kv::kV) {
        options.push_back({kMostCodeBits, 0, 0});
        continue;
      }
      for (int bits = Protected(l) ? kMostCodeBits : kLeastCodeBits; bits <= kMostCodeBits; ++bits) {
        options.push_back({bits, SideBytesPerToken(layers_[l], side, bits),
                           Kl(l, side, bits) * (side == Kv::kK ? factors.k : factors.v)});
      }
    }
  }
  return units;
}

double SensitivityModel::Predict(std::span<const LayerBits> bits, const JointFactors& factors) const {
  double sum = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (bits[l].k != kRawBits) sum += factors.k * Kl(l, Kv::kK, bits[l].k);
    if (bits[l].v != kRawBits && !layers_[l].latent) sum += factors.v * Kl(l, Kv::kV, bits[l].v);
  }
  return sum;
}

Result<std::vector<LayerBits>> SensitivityModel::Solve(int64_t budget, const JointFactors& factors) const {
  const AllocationUnits units = Units(factors);
  const Result<Allocation> found = AllocateExact(units, budget);
  if (!found) return found.error();
  std::vector<LayerBits> bits(layers_.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    bits[l].k = units[2 * l][found->choice[2 * l]].bits;
    bits[l].v = layers_[l].latent ? bits[l].k : units[2 * l + 1][found->choice[2 * l + 1]].bits;
  }
  return bits;
}

int64_t SensitivityModel::BytesPerToken(std::span<const LayerBits> bits) const {
  int64_t bytes = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    bytes += SideBytesPerToken(layers_[l], Kv::kK, bits[l].k) + SideBytesPerToken(layers_[l], Kv::kV, bits[l].v);
  }
  return bytes;
}

}  // namespace tersekv
