// SPDX-License-Identifier: Apache-2.0
// Packed tokens -> rows again, and the means of pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cache/encoder.h"
#include "src/codec/head_codec.h"
#include "src/codec/page_layout.h"

namespace tersekv {

// mean=page: the mean of rows [n, d] after mean and scale, summed in fp64 in token order, stored as [d] bf16 at `out`.
void MeasurePageMean(HeadCodec codec, const float* rows, size_t n, uint8_t* out);
// mean: [d]
void ReadPageMean(const SideLayout& side, const uint8_t* unit, float* mean);

// Token `slot` of a unit in the original space. row: [3 * d], the first d are the result.
void UnpackRow(const SideLayout& side, HeadCodec codec, const Encoder& encoder, const uint8_t* unit, size_t slot,
               float* row);

}  // namespace tersekv
