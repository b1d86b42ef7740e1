// SPDX-License-Identifier: Apache-2.0
// What sequences are tested with: one spec of each way to store, and two layers of different shapes.
#pragma once

#include <vector>

#include "tersekv/cache.h"

namespace tersekv {

inline const std::vector<LayerShape> kTwoLayers = {{2, 1, 32, 32}, {4, 2, 32, 64}};

inline constexpr const char* kSpecs[] = {"k4v4",
                                         "k4v4+sink=7+win=33",
                                         "k3v5+sink=0+win=0",
                                         "k4v4+mean=off+scale=off+sink=2+win=50",
                                         "k2v2+page=128+win=200",
                                         "k4v4+mean=page+win=40",
                                         "q8_0+mean=page+sink=3+win=20",
                                         "q4_0+rot=h1+mean=stats+scale=on",
                                         "kivi-k4v4+page=64+win=30+sink=2",
                                         "k3tv3t",
                                         "f16"};

}  // namespace tersekv
