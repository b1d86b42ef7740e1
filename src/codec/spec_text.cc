// SPDX-License-Identifier: Apache-2.0
#include "src/codec/spec_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "src/codec/list.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

constexpr size_t kMaxQuoted = 60;    // characters
constexpr size_t kMaxCompared = 32;  // characters; the longest known spec has 13

// A known spec and how it ranks among those at the same distance, smaller first: attended as integers, V no wider than
// K (wider is rarely wanted), widths alike.
struct Known {
  std::string text;
  std::tuple<bool, bool, float> preference;
};

std::vector<Known> RankedKnownSpecs() {
  std::vector<Known> known;
  for (std::string& text : KnownSpecs()) {
    const KvSpec spec = ParseSpec(text).value();
    const bool fast = StorageOf(spec.k.family) != Storage::kRecords && StorageOf(spec.v.family) != Storage::kRecords;
    known.push_back({std::move(text), {!fast, spec.v.bits > spec.k.bits, std::abs(spec.k.bits - spec.v.bits)}});
  }
  return known;
}

}  // namespace

std::string Clip(std::string_view text) {
  constexpr std::string_view kCut = "...";
  std::string out;
  size_t fits = 0;  // length of `out` that leaves room for the mark
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool printable = byte >= 0x20 && byte < 0x7F;
    out += c == '\\' ? std::string("\\\\") : printable ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
    if (out.size() > kMaxQuoted) {
      out.resize(fits);
      out += kCut;
      break;
    }
    if (out.size() <= kMaxQuoted - kCut.size()) fits = out.size();
  }
  return out;
}

std::string Quote(std::string_view text) { return "'" + Clip(text) + "'"; }

NumberError ParseNumber(std::string_view text, uint64_t max, uint64_t* out) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), digit)) return NumberError::kMalformed;
  if (text.size() > 1 && text.front() == '0') return NumberError::kMalformed;
  uint64_t value = 0;
  for (const char c : text) {
    const auto d = static_cast<uint64_t>(c - '0');
    if (value > max / 10 || value * 10 > max - d || d > max) return NumberError::kTooLarge;
    value = value * 10 + d;
  }
  *out = value;
  return NumberError::kNone;
}

std::string OneOf(std::span<const std::string_view> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> NearestKnown(std::string_view text, size_t count) {
  static const std::vector<Known> known = RankedKnownSpecs();
  text = text.substr(0, kMaxCompared);
  std::vector<std::pair<int, const Known*>> candidates;
  for (const Known& k : known) candidates.emplace_back(EditDistance(text, k.text), &k);
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second->preference) < std::tie(b.first, b.second->preference);
  });
  std::vector<std::string> nearest;
  for (size_t i = 0; i < std::min(count, candidates.size()); ++i) nearest.push_back(candidates[i].second->text);
  return nearest;
}

std::string Normalized(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' || (c >= '\t' && c <= '\r')) continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

}  // namespace tersekv
