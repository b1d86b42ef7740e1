// SPDX-License-Identifier: Apache-2.0
#include "tersekv/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

namespace tersekv {
namespace {

template <class T>
std::optional<T> Whole(std::string_view text) {
  T value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last) return {};
  return value;
}

// The power of 1024 of "", "B", "K", "kB" or "KiB"; -1: no suffix.
int PowerOf(std::string_view suffix) {
  const auto is = [](char c, char small) { return (c | 0x20) == small; };
  if (!suffix.empty() && is(suffix.back(), 'b')) {
    suffix.remove_suffix(1);
    if (suffix.size() == 2 && is(suffix.back(), 'i')) suffix.remove_suffix(1);
  }
  if (suffix.empty()) return 0;
  if (suffix.size() > 1) return -1;
  const size_t at = std::string_view("kmgt").find(static_cast<char>(suffix[0] | 0x20));
  return at == std::string_view::npos ? -1 : static_cast<int>(at) + 1;
}

}  // namespace

std::optional<int64_t> ParseWhole(std::string_view text) { return Whole<int64_t>(text); }

std::optional<double> ParseReal(std::string_view text) {
  const std::optional<double> value = Whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

Result<size_t> ParseBytes(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<double> number = ParseReal(text.substr(0, digits));
  const int power = PowerOf(text.substr(digits));
  const double bytes = number && power >= 0 ? std::ldexp(*number, 10 * power) : 0;
  if (!(bytes >= 1)) {
    return InvalidArgument("'" + std::string(text) +
                           "' is not a size: write a positive number with K, M, G or T, e.g. 64M");
  }
  if (bytes > 9e15) return InvalidArgument("'" + std::string(text) + "' is beyond what a machine can address");
  return static_cast<size_t>(bytes);
}

}  // namespace tersekv
