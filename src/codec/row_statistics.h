// SPDX-License-Identifier: Apache-2.0
// Mean and scale of the rows of one head (docs/decisions/0001-contract.md, section 4). Sums run in token order in fp64.
// And the scale of codecs whose records have none (fp8-head, fp8-tensor: docs/decisions/0007-shared-scales.md).
#pragma once

#include <cstddef>

#include "src/codec/head_codec.h"

namespace tersekv {

inline constexpr int kStatsTokens = 128;  // a sequence without a profile measures this many, right after its sinks

// rows: [n, d], row t at rows + t * d. mean: [d].
void RowMean(const float* rows, size_t n, int d, float* mean);

// Keys: scale = sqrt(std), floored at 1e-3 of the head's largest, geometric mean 1. All-equal rows: 1 everywhere.
// inv_scale: fp32 reciprocals. mean: as RowMean gave it.
void RowScale(const float* rows, size_t n, int d, const float* mean, float* scale, float* inv_scale);

// scale: [d] wanted ones, floored at 1e-3 of the largest (all 0: 1), with geometric mean 1. wanted: [d], overwritten.
void NormaliseScale(double* wanted, size_t d, float* scale);

// Largest |R x'| of the rows [n, d], by the codec's mean, scale and rotation. row, scratch: [d].
float RowPeak(const HeadCodec& codec, const float* rows, size_t n, float* row, float* scratch);
// What to take for it where only moments are known, for rows around `mean` (null: 0) with `variance`, both [d]: without
// a rotation the largest |mean| + 6 deviations of a channel, with one the root of E|x'|^2, which no R x' of a row of
// average norm exceeds.
float MomentPeak(const float* mean, const float* variance, const float* inv_scale, int d, bool rotated);
// The power of two that takes the peak to between 448/4 and 448/2, so that rows of twice the peak don't saturate;
// within [2^-60, 2^60]. peak 0: 1.
float SharedScaleOfPeak(float peak);
// scale, inv_scale: [d], times a power of two and its reciprocal.
void ApplySharedScale(float shared, int d, float* scale, float* inv_scale);

}  // namespace tersekv
