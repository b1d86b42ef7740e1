// SPDX-License-Identifier: Apache-2.0
// 2-D vector quantiser: adjacent channels 2p, 2p + 1 share one index into a table of pairs of integer levels, 2 * bits
// bits an index (4 to 8), so that 2.5 and 3.5 bits a value exist. This file and vq2-inl.h are the codec's one
// definition.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/codec/integer_levels.h"
#include "src/codec/vq2_tables.h"

namespace tersekv {

struct Vq2 {
  static constexpr Family kFamily = Family::kVq2;
  static constexpr bool kUnitVariance = true;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 16;  // indices fill whole bytes
  static constexpr int IndexBits(const RecordShape& shape) { return static_cast<int>(2 * shape.bits); }
  static constexpr size_t Bytes(const RecordShape& shape) {
    return static_cast<size_t>(shape.d / 2) * static_cast<size_t>(IndexBits(shape)) / 8 + 2;
  }
  static constexpr size_t ScratchBytes(const RecordShape& shape) {
    return static_cast<size_t>(shape.d) * 6;  // inputs twice, best pairs, indices, levels
  }
};

struct Vq2Table {
  const int8_t* levels;  // [table.count, 2]
  LevelTable table;      // bits of an index, entries, step
};
inline constexpr Vq2Table kVq2Tables[] = {
    {kVq2Levels16, {.bits = 4, .count = 16, .step = kVq2Step16}},
    {kVq2Levels32, {.bits = 5, .count = 32, .step = kVq2Step32}},
    {kVq2Levels64, {.bits = 6, .count = 64, .step = kVq2Step64}},
    {kVq2Levels128, {.bits = 7, .count = 128, .step = kVq2Step128}},
    {kVq2Levels256, {.bits = 8, .count = 256, .step = kVq2Step256}},
};
constexpr const Vq2Table& Vq2TableOf(const RecordShape& shape) { return kVq2Tables[Vq2::IndexBits(shape) - 4]; }

}  // namespace tersekv
