// SPDX-License-Identifier: Apache-2.0
// What fewer bits cost: measured KL of each unit at a few widths, carried to the others by the codec's distortion.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/calibration/allocate.h"
#include "tersekv/calibration.h"
#include "tersekv/profile.h"

namespace tersekv {

// log KL is linear in log D(bits) through two anchors (the nearest two; one: slope 1). A small error costs KL in
// proportion to D, slope 1; slopes outside [1/2, 2] are noise or saturation and are cut, through the anchor of fewer
// bits, which stands farther above the noise. anchors: ascending bits, at least one.
double InterpolateKl(std::span<const UnitSensitivity::Anchor> anchors, int bits, int head_dim);

// Factors by which measured joint KL exceeds the sum of the units', apart for K and V.
struct JointFactors {
  double k = 1, v = 1;
};

// The additive model: units ordered (layer 0 K, layer 0 V, layer 1 K, ...).
class SensitivityModel {
 public:
  // protect_*: layers whose only option is 8 bits. sensitivities: in unit order. A latent is one unit, K: its V costs
  // nothing and is given K's width.
  SensitivityModel(std::vector<LayerShape> layers, std::vector<UnitSensitivity> sensitivities, int protect_first,
                   int protect_last);

  AllocationUnits Units(const JointFactors& factors) const;
  // Sum over the sides that are not raw.
  double Predict(std::span<const LayerBits> bits, const JointFactors& factors) const;
  Result<std::vector<LayerBits>> Solve(int64_t budget, const JointFactors& factors) const;
  int64_t BytesPerToken(std::span<const LayerBits> bits) const;
  bool Protected(size_t layer) const;

 private:
  double Kl(size_t layer, Kv side, int bits) const;

  std::vector<LayerShape> layers_;
  std::vector<UnitSensitivity> sensitivities_;
  size_t protect_first_, protect_last_;
};

}  // namespace tersekv
