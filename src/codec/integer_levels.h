// SPDX-License-Identifier: Apache-2.0
// What record codecs with one table of integer levels share: inputs of their integer metric, and the stored scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/half.h"
#include "src/codec/lloyd_max.h"
#include "src/codec/record.h"

namespace tersekv {

// Inputs of a metric are in quarters of a level, at most 1535: 6 to 10 standard deviations, by the table. Levels are at
// most 127, so a difference is at most 2043, and two squares times 256 stay below 2^31.
inline constexpr int kMetricUnits = 4;
inline constexpr int kMetricPeak = 1535;

// y -> round(y * ((4 / step) / s)), saturated: one division a row, one product a value, round to even. s > 0.
inline void MetricInputs(const RecordRow& row, int d, float step, int16_t* z) {
  constexpr float kPeak = static_cast<float>(kMetricPeak);
  constexpr float kRound = 0x1.8p23f;  // ulp 1: adding it rounds to an integer
  const float ratio = (static_cast<float>(kMetricUnits) / step) / row.s;
  for (int c = 0; c < d; ++c) {
    float v = row.y[c] * ratio;
    v = v < kPeak ? v : kPeak;
    v = v > -kPeak ? v : -kPeak;
    z[c] = static_cast<int16_t>((v + kRound) - kRound);
  }
}

// bf16 of a scale; saturates at bf16's largest.
inline uint16_t StoredScale(float g) { return F32ToBF16(g < 0x1.fep127f ? g : 0x1.fep127f); }

inline void StoreScale(uint16_t scale, uint8_t* at) {
  at[0] = static_cast<uint8_t>(scale);
  at[1] = static_cast<uint8_t>(scale >> 8);
}
inline float LoadScale(const uint8_t* at) { return BF16ToF32(static_cast<uint16_t>(at[0] | at[1] << 8)); }

}  // namespace tersekv
