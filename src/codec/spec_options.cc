// SPDX-License-Identifier: Apache-2.0
// The "+name=value" part of a spec.
#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/codec/list.h"
#include "src/codec/spec_rules.h"
#include "src/codec/spec_text.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

// What an option takes: one of `names`, or a number up to `max` if there are none.
struct Domain {
  std::span<const std::string_view> names;
  uint64_t max = 0;
};

Domain DomainOf(Option option) {
  switch (option) {
    case Option::kRot:
      return {kRotationNames};
    case Option::kMean:
      return {kMeanNames};
    case Option::kScale:
      return {kScaleNames};
    case Option::kNorm:
      return {kNormNames};
    case Option::kPage:
      return {kPageNames};
    case Option::kSink:
      return {{}, kMaxSink};
    case Option::kWin:
      return {{}, kMaxWin};
    case Option::kSeed:
      break;
  }
  return {{}, std::numeric_limits<uint64_t>::max()};
}

std::string DomainText(const Domain& domain) {
  return domain.names.empty() ? fmt::format("0 to {}", domain.max) : OneOf(domain.names);
}

// value: an index into the names of the option, or its number.
void Set(Option option, uint64_t value, KvSpec* spec) {
  switch (option) {
    case Option::kRot:
      spec->rotation = static_cast<Rotation>(value);
      break;
    case Option::kMean:
      spec->mean = static_cast<MeanMode>(value);
      break;
    case Option::kScale:
      spec->scale = value == 1;
      break;
    case Option::kNorm:
      spec->k.norm = spec->v.norm = static_cast<NormMode>(value);
      break;
    case Option::kSink:
      spec->sink = static_cast<int>(value);
      break;
    case Option::kWin:
      spec->win = static_cast<int>(value);
      break;
    case Option::kPage:
      spec->page = kPages[value];
      break;
    case Option::kSeed:
      spec->seed = value;
      break;
  }
}

std::optional<size_t> IndexOf(std::span<const std::string_view> names, std::string_view name) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) return std::nullopt;
  return static_cast<size_t>(it - names.begin());
}

// text: the whole spec, for messages.
Status ParseValue(std::string_view text, Option option, std::string_view value, KvSpec* spec) {
  const std::string_view name = kOptionNames[static_cast<size_t>(option)];
  const Domain domain = DomainOf(option);
  if (!domain.names.empty()) {
    const std::optional<size_t> index = IndexOf(domain.names, value);
    if (!index) {
      return InvalidArgument(fmt::format("unknown value {} of {} in {}: {} takes {}", Quote(value), name, Quote(text),
                                         name, DomainText(domain)));
    }
    Set(option, *index, spec);
    return {};
  }
  uint64_t number = 0;
  switch (ParseNumber(value, domain.max, &number)) {
    case NumberError::kNone:
      break;
    case NumberError::kTooLarge:
      return InvalidArgument(fmt::format("{} {} in {} is too large: {} takes {}", name, Clip(value), Quote(text), name,
                                         DomainText(domain)));
    case NumberError::kMalformed:
      return InvalidArgument(fmt::format(
          "value {} of {} in {} is not a number: {} takes {}, digits only (no sign, spaces or leading zeros)",
          Quote(value), name, Quote(text), name, DomainText(domain)));
  }
  Set(option, number, spec);
  return {};
}

}  // namespace

Status ParseOptions(std::string_view text, std::string_view options, KvSpec* spec) {
  std::bitset<kOptionNames.size()> seen;
  const bool raw = spec->raw();
  for (std::string_view rest = options;;) {
    const size_t plus = std::min(rest.find('+'), rest.size());
    const std::string_view item = rest.substr(0, plus);
    if (item.empty()) {
      return InvalidArgument(fmt::format("empty option in {}: remove the extra '+'", Quote(text)));
    }
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view name = item.substr(0, equals);
    const std::optional<size_t> index = IndexOf(kOptionNames, name);
    if (!index) {
      return InvalidArgument(fmt::format("unknown option {} in {}: options are {}", Quote(name), Quote(text),
                                         fmt::join(kOptionNames, ", ")));
    }
    const auto option = static_cast<Option>(*index);
    if (raw && option != Option::kPage) {
      return InvalidArgument(
          fmt::format("option {} in {} does not apply to the raw type {}, which takes only page: remove it", name,
                      Quote(text), RowOf(spec->k.family).text));
    }
    if (seen[*index]) {
      return InvalidArgument(fmt::format("option {} is given twice in {}: keep one", name, Quote(text)));
    }
    seen.set(*index);
    if (equals + 1 >= item.size()) {
      return InvalidArgument(fmt::format("option {} in {} has no value: write {}=X, where X is {}", name, Quote(text),
                                         name, DomainText(DomainOf(option))));
    }
    Status status = ParseValue(text, option, item.substr(equals + 1), spec);
    if (!status.ok()) return status;
    if (plus == rest.size()) return {};
    rest.remove_prefix(plus + 1);
  }
}

}  // namespace tersekv
