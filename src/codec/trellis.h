// SPDX-License-Identifier: Apache-2.0
// Trellis-coded levels: a bitshift trellis (Tseng et al. 2024, QTIP) whose code is a circular bit stream (tail-biting),
// so that a row takes exactly bits * d bits. This file and trellis-inl.h are the codec's one definition.
//
// Value j adds the symbol u_j of `bits` bits to the stream. Its level is a table's entry at the window of the stream
// that ends with u_j: u_j in the highest bits, the oldest symbol in the lowest. Windows are whole symbols.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "src/codec/integer_levels.h"
#include "src/codec/trellis_tables.h"

namespace tersekv {

struct Trellis {
  static constexpr Family kFamily = Family::kTrellis;
  static constexpr bool kUnitVariance = true;
  static constexpr bool kPage = false;
  static constexpr int kBlock = 8;  // symbols fill whole bytes
  static constexpr size_t Bytes(const RecordShape& shape) {
    return static_cast<size_t>(shape.d) * static_cast<size_t>(shape.bits) / 8 + 2;
  }
  static constexpr size_t ScratchBytes(const RecordShape& shape);
};

// One width. window: bits of the stream a level depends on. lap: values searched at either side of the stream's ends
// to choose how they join.
template <int kBits_, int kWindow_, int kLap_>
struct TrellisWidth {
  static constexpr int kBits = kBits_, kWindow = kWindow_, kLap = kLap_;
  static constexpr int kBranches = 1 << kBits;
  static constexpr int kStates = 1 << kWindow;
  static constexpr int kJoins = kStates / kBranches;  // what neighbouring windows share
  static constexpr int kSymbols = kWindow / kBits;    // of a window
  static_assert(kWindow % kBits == 0 && kSymbols >= 2);

  static constexpr const int8_t* Levels() {
    return kBits == 2 ? kTrellisLevels2 : kBits == 3 ? kTrellisLevels3 : kTrellisLevels4;
  }
  static constexpr LevelTable kTable = {
      .bits = kBits,
      .count = kStates,
      .step = kBits == 2   ? kTrellisStep2
              : kBits == 3 ? kTrellisStep3
                           : kTrellisStep4,
  };

  // The metric's low kBits bits are free for the symbol: inputs and levels times 2^kShift square to multiples of it.
  static constexpr int kShift = (kBits + 1) / 2;
  static constexpr std::array<int32_t, kStates> kMetricLevels = [] {
    std::array<int32_t, kStates> scaled = {};
    for (int w = 0; w < kStates; ++w) scaled[static_cast<size_t>(w)] = Levels()[w] * (kMetricUnits << kShift);
    return scaled;
  }();
};

// Calls f(TrellisWidth) for the width of `bits`.
template <class F>
constexpr auto WithTrellisWidth(float bits, F&& f) {
  if (bits == 2) return f(TrellisWidth<2, 10, 48>());
  if (bits == 3) return f(TrellisWidth<3, 9, 24>());
  return f(TrellisWidth<4, 8, 16>());
}

constexpr size_t Trellis::ScratchBytes(const RecordShape& shape) {
  return WithTrellisWidth(shape.bits, [&](auto width) {
    const int steps = std::max(shape.d, 2 * width.kLap);
    return static_cast<size_t>(steps * width.kJoins + shape.d * 4);  // survivors, inputs, symbols, levels
  });
}

}  // namespace tersekv
