// SPDX-License-Identifier: Apache-2.0
// Options of a spec, their values and limits: what the parser, the formatter and CheckSupported agree on.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv {

// In the order in which FormatSpec prints them.
enum class Option : uint8_t { kRot, kMean, kScale, kNorm, kSink, kWin, kPage, kSeed };
inline constexpr std::array<std::string_view, 8> kOptionNames = {"rot",  "mean", "scale", "norm",
                                                                 "sink", "win",  "page",  "seed"};

// Indexed by the enumerators of spec.h.
inline constexpr std::array<std::string_view, 4> kRotationNames = {"none", "h1", "h2", "haar"};
inline constexpr std::array<std::string_view, 4> kMeanNames = {"off", "stats", "page", "profile"};
inline constexpr std::array<std::string_view, 2> kScaleNames = {"off", "on"};
inline constexpr std::array<std::string_view, 4> kNormNames = {"none", "match", "ls", "unbiased"};
static_assert(static_cast<int>(Rotation::kHaar) == 3 && static_cast<int>(MeanMode::kProfile) == 3 &&
              static_cast<int>(NormMode::kUnbiased) == 3);

inline constexpr int kMaxSink = 1024;  // tokens
inline constexpr int kMaxWin = 65536;  // tokens
inline constexpr std::array<std::string_view, 2> kPageNames = {"64", "128"};
inline constexpr std::array<int, 2> kPages = {64, 128};                 // tokens
inline constexpr int kMinGroup = 16, kMaxGroup = 1024, kGroupStep = 8;  // channels

constexpr bool IsGroup(uint64_t n) { return n >= kMinGroup && n <= kMaxGroup && n % kGroupStep == 0; }

// Whether a spec string for `spec` exists: kInvalidArgument names the member that has none.
Status ValidateSpec(const KvSpec& spec);

// Reads "name=value+name=value..." into `spec`, which holds the defaults of the base. text: the whole spec, for
// messages.
Status ParseOptions(std::string_view text, std::string_view options, KvSpec* spec);

}  // namespace tersekv
