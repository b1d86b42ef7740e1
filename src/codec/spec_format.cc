// SPDX-License-Identifier: Apache-2.0
// FormatSpec, DefaultsOf, KnownSpecs and the check that a KvSpec has a text.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "src/base/check.h"
#include "src/codec/list.h"
#include "src/codec/spec_rules.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

KvSpec DefaultsOf(const KvSpec& s) { return tersekv::DefaultsOf(s.k.family, s.k.bits, s.v.family, s.v.bits, s.group); }

std::string FormatBase(const KvSpec& s) {
  const FamilyRow& k = RowOf(s.k.family);
  switch (k.form) {
    case SpecForm::kWord:
      return std::string(k.text);
    case SpecForm::kPair:
      return fmt::format("k{:g}{}v{:g}{}", s.k.bits, k.text, s.v.bits, RowOf(s.v.family).text);
    case SpecForm::kKivi:
      break;
  }
  return fmt::format("{}k{:g}v{:g}{}", k.text, s.k.bits, s.v.bits, s.group > 0 ? fmt::format("-g{}", s.group) : "");
}

template <class E>
constexpr bool IsIndex(E value, size_t size) {
  return static_cast<size_t>(value) < size;
}

Status ValidateSides(const KvSpec& s) {
  const FamilyRow* k = FindFamily(s.k.family);
  const FamilyRow* v = FindFamily(s.v.family);
  if (k == nullptr || v == nullptr) {
    return InvalidArgument(fmt::format("KvSpec has family {} for K and {} for V, the largest is {}: use an enumerator",
                                       static_cast<int>(s.k.family), static_cast<int>(s.v.family),
                                       static_cast<int>(Family::kAuto)));
  }
  if (k->form != v->form || (k->form == SpecForm::kWord && k != v)) {
    return InvalidArgument(fmt::format(
        "KvSpec has K of {} with V of {}: only kNvN families mix; use one family for both", k->name, v->name));
  }
  for (const auto& [side, row, bits] : {std::tuple{'K', k, s.k.bits}, std::tuple{'V', v, s.v.bits}}) {
    if (row->widths.Contains(bits)) continue;
    return InvalidArgument(fmt::format("KvSpec has {:g} bits for {}: {} takes {:g} to {:g} in steps of {:g}", bits,
                                       side, row->name, row->widths.first, row->widths.last, row->widths.step));
  }
  if (s.group != 0 && (k->form != SpecForm::kKivi || s.group < 0 || !IsGroup(static_cast<uint64_t>(s.group)))) {
    return InvalidArgument(fmt::format("KvSpec has group {}: kivi takes {} to {}, a multiple of {}, everything else 0",
                                       s.group, kMinGroup, kMaxGroup, kGroupStep));
  }
  return {};
}

}  // namespace

KvSpec DefaultsOf(Family k_family, float k_bits, Family v_family, float v_bits, int group) {
  TERSEKV_CHECK(FindFamily(k_family) != nullptr && FindFamily(v_family) != nullptr);
  const SpecDefaults& k = *RowOf(k_family).defaults;
  return {.k = {k_family, k_bits, k.k_norm},
          .v = {v_family, v_bits, RowOf(v_family).defaults->v_norm},
          .rotation = k.rotation,
          .mean = k.mean,
          .scale = k.scale,
          .sink = k.sink,
          .win = k.win,
          .page = k.page,
          .seed = 0,
          .group = group};
}

Status ValidateSpec(const KvSpec& s) {
  Status sides = ValidateSides(s);
  if (!sides.ok()) return sides;
  if (!IsIndex(s.rotation, kRotationNames.size()) || !IsIndex(s.mean, kMeanNames.size()) ||
      !IsIndex(s.k.norm, kNormNames.size()) || !IsIndex(s.v.norm, kNormNames.size())) {
    return InvalidArgument("KvSpec has a rotation, mean or norm that is no enumerator of spec.h");
  }
  if (s.sink < 0 || s.sink > kMaxSink || s.win < 0 || s.win > kMaxWin) {
    return InvalidArgument(fmt::format("KvSpec has sink {} and win {}: sink takes 0 to {}, win 0 to {}", s.sink, s.win,
                                       kMaxSink, kMaxWin));
  }
  if (std::find(kPages.begin(), kPages.end(), s.page) == kPages.end()) {
    return InvalidArgument(fmt::format("KvSpec has page {}: page takes {}", s.page, fmt::join(kPages, " or ")));
  }
  KvSpec plain = DefaultsOf(s);
  if (s.k.norm != s.v.norm && (s.k.norm != plain.k.norm || s.v.norm != plain.v.norm)) {
    return InvalidArgument(
        fmt::format("KvSpec has norm {} for K and {} for V: norms differ only as {} and {}",
                    kNormNames[static_cast<size_t>(s.k.norm)], kNormNames[static_cast<size_t>(s.v.norm)],
                    kNormNames[static_cast<size_t>(plain.k.norm)], kNormNames[static_cast<size_t>(plain.v.norm)]));
  }
  plain.page = s.page;
  if (s.raw() && s != plain) {
    return InvalidArgument(fmt::format(
        "KvSpec of raw type {} has options other than page: leave them at their defaults", RowOf(s.k.family).text));
  }
  return {};
}

std::string FormatSpec(const KvSpec& spec) {
  TERSEKV_CHECK(ValidateSpec(spec).ok());
  const KvSpec base = DefaultsOf(spec);
  std::string out = FormatBase(spec);
  const auto add = [&out](Option option, const auto& value) {
    out += fmt::format("+{}={}", kOptionNames[static_cast<size_t>(option)], value);
  };
  if (spec.rotation != base.rotation) add(Option::kRot, kRotationNames[static_cast<size_t>(spec.rotation)]);
  if (spec.mean != base.mean) add(Option::kMean, kMeanNames[static_cast<size_t>(spec.mean)]);
  if (spec.scale != base.scale) add(Option::kScale, kScaleNames[spec.scale ? 1 : 0]);
  if (spec.k.norm != base.k.norm || spec.v.norm != base.v.norm) {
    add(Option::kNorm, kNormNames[static_cast<size_t>(spec.k.norm)]);
  }
  if (spec.sink != base.sink) add(Option::kSink, spec.sink);
  if (spec.win != base.win) add(Option::kWin, spec.win);
  if (spec.page != base.page) add(Option::kPage, spec.page);
  if (spec.seed != base.seed) add(Option::kSeed, spec.seed);
  return out;
}

std::vector<std::string> KnownSpecs() {
  std::vector<std::string> specs;
  for (const FamilyRow& row : kFamilies) {
    if (row.form == SpecForm::kWord) {
      if (row.family == Family::kAuto) {
        for (const PresetRow& preset : kPresets) specs.emplace_back(preset.name);
      }
      specs.emplace_back(row.text);
      continue;
    }
    if (row.form == SpecForm::kKivi) {
      for (const PresetRow& p : kPresets) {
        specs.push_back(FormatSpec(tersekv::DefaultsOf(row.family, p.k_bits, row.family, p.v_bits, p.group)));
      }
      continue;
    }
    // Every pair of Lloyd-Max; K and V alike of the rest.
    for (int k = 0; k < row.widths.count(); ++k) {
      for (int v = 0; v < row.widths.count(); ++v) {
        if (v != k && row.family != Family::kLloydMax) continue;
        specs.push_back(FormatSpec(tersekv::DefaultsOf(row.family, row.widths.at(k), row.family, row.widths.at(v), 0)));
      }
    }
  }
  return specs;
}

}  // namespace tersekv
