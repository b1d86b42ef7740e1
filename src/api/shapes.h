// SPDX-License-Identifier: Apache-2.0
// Limits of what this version stores.
#pragma once

#include "tersekv/cache.h"

namespace tersekv {

inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMinPackedHeadDim = 32;
inline constexpr int kPackedHeadDimStep = 16;

// Heads and head dims of one layer under a spec that CheckSupported has passed.
Status CheckShape(const KvSpec& spec, const LayerShape& shape, int layer);

}  // namespace tersekv
