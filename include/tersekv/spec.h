// SPDX-License-Identifier: Apache-2.0
// Spec strings: how a KV cache is stored, as one short text that is the same in the CLI, C, Python, files, metrics and
// the environment. Grammar: docs/formats.md. All functions are pure and thread-safe.
//
//   spec := base ("+" opt)*
//   base := f32 | f16 | bf16 | fp8 | fp8-head | fp8-tensor | int8 | mxfp4 | nvfp4 | q8_0 | q5_0 | q4_0 | iq4_nl
//         | "k" N [fam] "v" N [fam]     N in 2..8; 2.5 and 3.5 with fam q; 2, 3, 4 with fam t
//         | "kivi-k" N "v" N ["-g" N] | safe | balanced | compact | aggressive | auto
//   fam  := "" Lloyd-Max | t trellis | q 2-D VQ | p prod (N-1 bits + QJL)
//   opt  := rot=none|h1|h2|haar  mean=off|stats|page|profile  scale=on|off  norm=none|match|ls|unbiased
//           sink=N  win=N  page=64|128  seed=N
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/status.h"

namespace tersekv {

enum class Family : uint8_t {
  kF32,
  kF16,
  kBF16,  // raw
  kLloydMax,
  kTrellis,
  kVq2,
  kProd,  // "kNvN" with fam "", t, q, p
  kKivi,  // kivi-kNvN[-gN]
  kFp8,
  kFp8Head,
  kFp8Tensor,
  kInt8,
  kMxfp4,
  kNvfp4,
  kQ8_0,
  kQ5_0,
  kQ4_0,
  kIq4Nl,  // comparison formats
  kAuto,   // decided by a probe or a profile at load
};
enum class Rotation : uint8_t { kNone, kH1, kH2, kHaar };
enum class MeanMode : uint8_t { kOff, kStats, kPage, kProfile };
enum class NormMode : uint8_t { kNone, kMatch, kLs, kUnbiased };

// One side (K or V): which codec and how many bits. bits is fractional only for kVq2 (2.5, 3.5).
struct SideSpec {
  Family family = Family::kF16;
  float bits = 16;
  NormMode norm = NormMode::kNone;
  bool operator==(const SideSpec&) const = default;
};

struct KvSpec {
  SideSpec k, v;
  Rotation rotation = Rotation::kNone;
  MeanMode mean = MeanMode::kOff;
  bool scale = false;  // per-channel scale of K (V takes none without a profile)
  int sink = 0;        // first tokens of a sequence that stay raw
  int win = 0;         // newest tokens that stay raw, the query's own included
  int page = 64;       // tokens a page
  uint64_t seed = 0;   // of the sign stream and of haar
  int group = 0;       // kivi: channels a value group (0 = the whole head)
  bool operator==(const KvSpec&) const = default;

  bool raw() const { return k.family == Family::kF32 || k.family == Family::kF16 || k.family == Family::kBF16; }
};

// Parses one spec. Presets come back as what they stand for. An unknown text is kInvalidArgument and lists the nearest
// known specs; a number out of range names the number and the range.
Result<KvSpec> ParseSpec(std::string_view text);

// Comma-separated specs. An empty list or element is an error.
Result<std::vector<KvSpec>> ParseSpecList(std::string_view text);

// Canonical text: options in the order of the grammar, defaults of the base omitted. ParseSpec(FormatSpec(s)) == s.
std::string FormatSpec(const KvSpec& spec);

// Defaults of the base that `spec.k/.v/.group` name (used by FormatSpec and the docs).
KvSpec DefaultsOf(Family k_family, float k_bits, Family v_family, float v_bits, int group);

// The bases and presets that a user can type, in the order of the grammar, for listings and suggestions.
std::vector<std::string> KnownSpecs();

}  // namespace tersekv
