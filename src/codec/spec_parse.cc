// SPDX-License-Identifier: Apache-2.0
// ParseSpec and ParseSpecList: the base here, the options in spec_options.cc.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/codec/list.h"
#include "src/codec/spec_rules.h"
#include "src/codec/spec_text.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

constexpr size_t kSuggestions = 3;
constexpr size_t kMaxHinted = 256;  // bytes; longer texts are not typing mistakes

Status UnknownSpec(std::string_view base) {
  return InvalidArgument(fmt::format("unknown KV spec {}: nearest are {}; `tersekv run --kv list` prints all",
                                     Quote(base), fmt::join(NearestKnown(Normalized(base), kSuggestions), ", ")));
}

// "2 to 8" or "2, 2.5, 3, 3.5 or 4".
std::string WidthsText(const Widths& widths) {
  if (widths.step == 1) return fmt::format("{:g} to {:g}", widths.first, widths.last);
  std::vector<std::string> texts;
  for (int i = 0; i < widths.count(); ++i) texts.push_back(fmt::format("{:g}", widths.at(i)));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return OneOf(views);
}

std::optional<float> FindWidth(const Widths& widths, std::string_view token) {
  for (int i = 0; i < widths.count(); ++i) {
    if (token == fmt::format("{:g}", widths.at(i))) return widths.at(i);
  }
  return std::nullopt;
}

// The allowed width nearest to a token of digits and points; the wider one of two.
float NearestWidth(const Widths& widths, std::string_view token) {
  float value = 0;
  size_t i = 0;
  for (; i < token.size() && token[i] != '.'; ++i)
    value = std::min(value * 10 + static_cast<float>(token[i] - '0'), 99.F);
  if (i + 1 < token.size() && token[i + 1] != '.') value += static_cast<float>(token[i + 1] - '0') / 10;
  float best = widths.first;
  for (int w = 0; w < widths.count(); ++w) {
    const float distance = widths.at(w) > value ? widths.at(w) - value : value - widths.at(w);
    const float best_distance = best > value ? best - value : value - best;
    if (distance <= best_distance) best = widths.at(w);
  }
  return best;
}

// One side as it stands in the text: a width of digits and points, then the family letter.
struct SideText {
  std::string_view width;
  const FamilyRow* row;
};

// Reads `letter` width [fam] off the front of `rest`; nullopt if that's not what is there. kivi takes no fam.
std::optional<SideText> TakeSide(char letter, bool kivi, std::string_view* rest) {
  if (rest->empty() || rest->front() != letter) return std::nullopt;
  rest->remove_prefix(1);
  const size_t digits = std::min(rest->find_first_not_of("0123456789."), rest->size());
  if (digits == 0) return std::nullopt;
  SideText side = {rest->substr(0, digits), &RowOf(kivi ? Family::kKivi : Family::kLloydMax)};
  rest->remove_prefix(digits);
  for (const FamilyRow& row : kFamilies) {
    if (kivi || row.form != SpecForm::kPair || row.text.empty() || !rest->starts_with(row.text)) continue;
    side.row = &row;
    rest->remove_prefix(row.text.size());
    break;
  }
  return side;
}

// "kNvN" with families, or "kivi-kNvN[-gN]".
Result<KvSpec> ParsePair(std::string_view base) {
  const std::string_view kivi_text = RowOf(Family::kKivi).text;
  const bool kivi = base.starts_with(kivi_text);
  std::string_view rest = base.substr(kivi ? kivi_text.size() : 0);
  const std::optional<SideText> k = TakeSide('k', kivi, &rest);
  const std::optional<SideText> v = k ? TakeSide('v', kivi, &rest) : std::nullopt;
  const bool has_group = rest.starts_with("-g");
  if (!v || (!rest.empty() && !has_group)) return UnknownSpec(base);

  const std::optional<float> k_bits = FindWidth(k->row->widths, k->width);
  const std::optional<float> v_bits = FindWidth(v->row->widths, v->width);
  const std::string_view group_text = has_group ? rest.substr(2) : rest;
  if (!k_bits || !v_bits) {
    const SideText& wrong = k_bits ? *v : *k;
    return InvalidArgument(
        fmt::format("unknown bit width {} for {} in {}: {} takes {} bits; did you mean {}k{:g}{}v{:g}{}?",
                    Clip(wrong.width), k_bits ? 'V' : 'K', Quote(base), wrong.row->name, WidthsText(wrong.row->widths),
                    kivi ? kivi_text : "", NearestWidth(k->row->widths, k->width), kivi ? "" : k->row->text,
                    NearestWidth(v->row->widths, v->width), kivi ? "" : v->row->text));
  }
  if (has_group && !kivi) {
    return InvalidArgument(
        fmt::format("group -g{} in {}: only kivi has value groups; leave it out or write kivi-k4v4-g32",
                    Clip(group_text), Quote(base)));
  }
  uint64_t group = 0;
  if (has_group && (ParseNumber(group_text, kMaxGroup, &group) != NumberError::kNone || !IsGroup(group))) {
    return InvalidArgument(
        fmt::format("group '{}' in {}: a kivi value group is {} to {} channels, a multiple of {}, such as -g32",
                    Clip(group_text), Quote(base), kMinGroup, kMaxGroup, kGroupStep));
  }
  return DefaultsOf(k->row->family, *k_bits, v->row->family, *v_bits, static_cast<int>(group));
}

Result<KvSpec> ParseBase(std::string_view base) {
  for (const PresetRow& preset : kPresets) {
    if (base == preset.name) {
      return DefaultsOf(Family::kKivi, preset.k_bits, Family::kKivi, preset.v_bits, preset.group);
    }
  }
  for (const FamilyRow& row : kFamilies) {
    if (row.form != SpecForm::kWord || base != row.text) continue;
    return DefaultsOf(row.family, row.widths.first, row.family, row.widths.first, 0);
  }
  return ParsePair(base);
}

Result<KvSpec> ParseExact(std::string_view text) {
  const size_t plus = std::min(text.find('+'), text.size());
  if (plus == 0) {
    return InvalidArgument(
        fmt::format("KV spec {} has no base before its options: write one such as k4v4{}", Quote(text), Clip(text)));
  }
  Result<KvSpec> spec = ParseBase(text.substr(0, plus));
  if (!spec || plus == text.size()) return spec;
  const Status status = ParseOptions(text, text.substr(plus + 1), &spec.value());
  if (!status.ok()) return status;
  return spec;
}

}  // namespace

Result<KvSpec> ParseSpec(std::string_view text) {
  if (text.empty())
    return InvalidArgument("empty KV spec: write one such as k4v4 or f16; `tersekv run --kv list` prints all");
  Result<KvSpec> spec = ParseExact(text);
  if (spec || text.size() > kMaxHinted) return spec;
  const std::string normalized = Normalized(text);
  if (normalized == text) return spec;
  if (!normalized.empty() && ParseExact(normalized)) {
    return InvalidArgument(fmt::format("unknown KV spec {}: specs are lower case without spaces; did you mean {}?",
                                       Quote(text), Clip(normalized)));
  }
  return InvalidArgument(spec.error().message() + " (specs are lower case without spaces)");
}

Result<std::vector<KvSpec>> ParseSpecList(std::string_view text) {
  if (text.empty())
    return InvalidArgument("empty list of KV specs: write one or more with commas between, such as f16,k4v4");
  std::vector<KvSpec> specs;
  for (std::string_view rest = text;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    if (comma == 0) {
      return InvalidArgument(fmt::format("element {} of the KV spec list {} is empty: remove the extra comma",
                                         specs.size() + 1, Quote(text)));
    }
    Result<KvSpec> spec = ParseSpec(rest.substr(0, comma));
    if (!spec) return spec.error();
    specs.push_back(*spec);
    if (comma == rest.size()) return specs;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace tersekv
