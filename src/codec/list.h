// SPDX-License-Identifier: Apache-2.0
// The one list of codecs. Parser, formatter, suggestions, ListCodecs, CheckSupported, BitsSpec, the kernels that get
// instantiated and the tests all come from these tables. Rows are in the order of the grammar (tersekv/spec.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tersekv/codec.h"
#include "tersekv/spec.h"

namespace tersekv {

// Widths of the Lloyd-Max codec that this build has kernels for.
inline constexpr std::array<int, 7> kLloydMaxBits = {2, 3, 4, 5, 6, 7, 8};

// Calls f(std::integral_constant<int, bits>) for each width, so that kernels and tests instantiate from the list.
template <class F>
constexpr void ForEachLloydMaxBits(F&& f) {
  [&f]<size_t... I>(std::index_sequence<I...>) { (f(std::integral_constant<int, kLloydMaxBits[I]>()), ...); }
  (std::make_index_sequence<kLloydMaxBits.size()>());
}

// How a family's text makes a base of the grammar.
enum class SpecForm : uint8_t {
  kWord,  // the text itself: f16, fp8, auto; K and V are the same
  kPair,  // k N text v N text; K and V may be of different families
  kKivi,  // text k N v N [-g N]
};

// Allowed code bits a value: first, first + step, ..., last.
struct Widths {
  float first, last, step = 1;
  constexpr int count() const { return static_cast<int>((last - first) / step) + 1; }
  constexpr float at(int i) const { return first + static_cast<float>(i) * step; }
  constexpr bool Contains(float bits) const {
    for (int i = 0; i < count(); ++i) {
      if (at(i) == bits) return true;
    }
    return false;
  }
};

// How a cache keeps the vectors of a family.
enum class Storage : uint8_t {
  kRows,     // values as they are: f32, f16, bf16
  kCodes,    // Lloyd-Max codes in blocks (src/bits/blocks.h) and a bf16 scale a vector: attended as integers
  kRecords,  // canonical records as they are (src/codec/record.h): decoded to fp32 tile by tile
};

// Options of a base when the spec doesn't give them; seed is always 0.
struct SpecDefaults {
  Rotation rotation = Rotation::kNone;
  MeanMode mean = MeanMode::kOff;
  bool scale = false;
  NormMode k_norm = NormMode::kNone, v_norm = NormMode::kNone;
  int sink = 0, win = 0, page = 64;
};
inline constexpr SpecDefaults kPlainDefaults = {};
inline constexpr SpecDefaults kPairDefaults = {.rotation = Rotation::kH1,
                                               .mean = MeanMode::kStats,
                                               .scale = true,
                                               .k_norm = NormMode::kUnbiased,
                                               .v_norm = NormMode::kLs,
                                               .sink = 4,
                                               .win = 128,
                                               .page = 64};
inline constexpr SpecDefaults kKiviDefaults = {.win = 128, .page = 128};

struct FamilyRow {
  Family family;
  Storage storage;
  SpecForm form;
  std::string_view text;  // in a spec, see SpecForm
  std::string_view name;  // in messages
  Widths widths;          // code bits a value
  const SpecDefaults* defaults;
  CodecCost cost;
  std::string_view description;
};

inline constexpr Widths kLloydMaxWidths = {static_cast<float>(kLloydMaxBits.front()),
                                           static_cast<float>(kLloydMaxBits.back())};
static_assert(kLloydMaxWidths.count() == static_cast<int>(kLloydMaxBits.size()), "widths have no gaps");

// clang-format off
inline constexpr FamilyRow kFamilies[] = {
    // family           storage            form             text      name         widths           defaults
    {Family::kF32,       Storage::kRows,    SpecForm::kWord, "f32",    "f32",       {32, 32},        &kPlainDefaults,
     CodecCost::kNone, "raw 32-bit floats, the reference"},
    {Family::kF16,       Storage::kRows,    SpecForm::kWord, "f16",    "f16",       {16, 16},        &kPlainDefaults,
     CodecCost::kNone, "raw half floats, the usual KV cache"},
    {Family::kBF16,      Storage::kRows,    SpecForm::kWord, "bf16",   "bf16",      {16, 16},        &kPlainDefaults,
     CodecCost::kNone, "raw bfloat16"},
    {Family::kFp8,       Storage::kRecords, SpecForm::kWord, "fp8",    "fp8",       {8, 8},          &kPlainDefaults,
     CodecCost::kTable, "E4M3 with an fp32 scale a vector"},
    {Family::kFp8Head,   Storage::kRecords, SpecForm::kWord, "fp8-head", "fp8-head", {8, 8},         &kPlainDefaults,
     CodecCost::kTable, "E4M3 with one scale a KV head, from the statistics"},
    {Family::kFp8Tensor, Storage::kRecords, SpecForm::kWord, "fp8-tensor", "fp8-tensor", {8, 8},     &kPlainDefaults,
     CodecCost::kTable, "E4M3 with one scale a layer for K and one for V, from the statistics"},
    {Family::kInt8,      Storage::kCodes,   SpecForm::kWord, "int8",   "int8",      {8, 8},          &kPlainDefaults,
     CodecCost::kInteger, "8-bit integers with a bf16 scale a vector"},
    {Family::kMxfp4,     Storage::kRecords, SpecForm::kWord, "mxfp4",  "mxfp4",     {4, 4},          &kPlainDefaults,
     CodecCost::kTable, "OCP MXFP4: E2M1 in blocks of 32 with an E8M0 scale"},
    {Family::kNvfp4,     Storage::kRecords, SpecForm::kWord, "nvfp4",  "nvfp4",     {4, 4},          &kPlainDefaults,
     CodecCost::kTable, "NVFP4: E2M1 in blocks of 16 with an E4M3 scale"},
    {Family::kQ8_0,      Storage::kRecords, SpecForm::kWord, "q8_0",   "q8_0",      {8, 8},          &kPlainDefaults,
     CodecCost::kTable, "llama.cpp Q8_0: blocks of 32 with an f16 scale"},
    {Family::kQ5_0,      Storage::kRecords, SpecForm::kWord, "q5_0",   "q5_0",      {5, 5},          &kPlainDefaults,
     CodecCost::kTable, "llama.cpp Q5_0: blocks of 32 with an f16 scale"},
    {Family::kQ4_0,      Storage::kRecords, SpecForm::kWord, "q4_0",   "q4_0",      {4, 4},          &kPlainDefaults,
     CodecCost::kTable, "llama.cpp Q4_0: blocks of 32 with an f16 scale"},
    {Family::kIq4Nl,     Storage::kRecords, SpecForm::kWord, "iq4_nl", "iq4_nl",    {4, 4},          &kPlainDefaults,
     CodecCost::kTable, "llama.cpp IQ4_NL: blocks of 32, non-linear levels, an f16 scale"},
    {Family::kLloydMax,  Storage::kCodes,   SpecForm::kPair, "",       "Lloyd-Max", kLloydMaxWidths, &kPairDefaults,
     CodecCost::kInteger, "rotated, Lloyd-Max levels, a bf16 scale a vector"},
    {Family::kTrellis,   Storage::kRecords, SpecForm::kPair, "t",      "trellis",   {2, 4},          &kPairDefaults,
     CodecCost::kSearch, "rotated, trellis-coded levels, a bf16 scale a vector"},
    {Family::kVq2,       Storage::kRecords, SpecForm::kPair, "q",      "2-D VQ",    {2, 4, .5F},     &kPairDefaults,
     CodecCost::kTable, "rotated, pairs of channels in one codebook, a bf16 scale a vector"},
    {Family::kProd,      Storage::kRecords, SpecForm::kPair, "p",      "prod",      {2, 8},          &kPairDefaults,
     CodecCost::kSearch, "rotated, N-1 bits plus the sign of a random projection (QJL), two scales a vector"},
    {Family::kKivi,      Storage::kRecords, SpecForm::kKivi, "kivi-",  "kivi",      {2, 8},          &kKiviDefaults,
     CodecCost::kTable, "KIVI: keys affine by channel and page, values affine by token and group"},
    {Family::kAuto,      Storage::kRecords, SpecForm::kWord, "auto",   "auto",      {0, 0},          &kPairDefaults,
     CodecCost::kNone, "what the profile recommends"},
};
// clang-format on

// Aliases of kivi specs.
struct PresetRow {
  std::string_view name;
  float k_bits, v_bits;
  int group;  // channels, 0 = the whole head
};
inline constexpr PresetRow kPresets[] = {
    {"safe", 4, 4, 0}, {"balanced", 4, 3, 0}, {"compact", 3, 3, 0}, {"aggressive", 3, 2, 32}};

// nullptr for a value that is no Family.
constexpr const FamilyRow* FindFamily(Family family) {
  for (const FamilyRow& row : kFamilies) {
    if (row.family == family) return &row;
  }
  return nullptr;
}

// The row of a Family that is in the list (every enumerator is).
constexpr const FamilyRow& RowOf(Family family) { return *FindFamily(family); }

constexpr Storage StorageOf(Family family) { return RowOf(family).storage; }

// What shares one scale that the statistics hold because the records have none.
enum class SharedScale : uint8_t { kNone, kHead, kTensor };
constexpr SharedScale SharedScaleOf(Family family) {
  if (family == Family::kFp8Head) return SharedScale::kHead;
  return family == Family::kFp8Tensor ? SharedScale::kTensor : SharedScale::kNone;
}

static_assert(
    [] {
      for (int f = 0; f <= static_cast<int>(Family::kAuto); ++f) {
        int rows = 0;
        for (const FamilyRow& row : kFamilies) rows += row.family == static_cast<Family>(f) ? 1 : 0;
        if (rows != 1) return false;
      }
      return true;
    }(),
    "each family has one row");

}  // namespace tersekv
