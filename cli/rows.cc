// SPDX-License-Identifier: Apache-2.0
#include "cli/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string_view>

namespace tersekv::cli {
namespace {

constexpr size_t kMaxHeadDim = 1024;

double Uniform(uint64_t* state) {  // SplitMix64, in (0, 1)
  uint64_t x = *state += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (static_cast<double>((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-53;
}

float FromHalf(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value = exponent == 31
                    ? (fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
                : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return half & 0x8000 ? -value : value;
}

template <class T>
T At(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// What follows "'key': " in the header of a file.
std::string_view Field(std::string_view header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

// "(3, 128)" -> {3, 128}; empty when it is none, an axis is 0 or the product does not fit.
std::vector<size_t> Shape(std::string_view text) {
  std::vector<size_t> shape;
  size_t product = 1;
  if (text.empty() || text[0] != '(') return {};
  for (size_t i = 1; i < text.size() && text[i] != ')';) {
    size_t value = 0, digits = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && digits < 12; ++i, ++digits) {
      value = value * 10 + static_cast<size_t>(text[i] - '0');
    }
    if (digits == 0 || value == 0 || product > (size_t{1} << 40) / value) return {};
    product *= value;
    shape.push_back(value);
    while (i < text.size() && (text[i] == ',' || text[i] == ' ')) ++i;
  }
  return shape;
}

}  // namespace

std::vector<float> GaussianRows(uint64_t seed, size_t n, int head_dim) {
  std::vector<float> rows(n * static_cast<size_t>(head_dim));
  for (size_t i = 0; i < rows.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log(Uniform(&seed)));
    const double angle = 2 * std::numbers::pi * Uniform(&seed);
    rows[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < rows.size()) rows[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return rows;
}

Result<Rows> ParseNpy(const std::string& text, const std::string& name) {
  static_assert(std::endian::native == std::endian::little);
  const auto bad = [&](const std::string& why) { return InvalidArgument(fmt::format("'{}': {}", name, why)); };
  if (text.size() < 12 || !text.starts_with("\x93NUMPY")) return bad("not a .npy file");
  const bool first_version = text[6] == 1;
  const size_t begin = first_version ? 10 : 12;
  const size_t length = first_version ? At<uint16_t>(&text[8]) : At<uint32_t>(&text[8]);
  if (length > text.size() - begin) return bad("its header is cut off");
  const std::string_view header(&text[begin], length);
  const std::string_view type = Field(header, "descr");
  const size_t bytes = type.starts_with("'<f2'")   ? 2
                       : type.starts_with("'<f4'") ? 4
                       : type.starts_with("'<f8'") ? 8
                                                   : 0;
  if (bytes == 0) return bad("its values must be little-endian f2, f4 or f8");
  if (!Field(header, "fortran_order").starts_with("False")) return bad("it must be in C order");
  const std::vector<size_t> shape = Shape(Field(header, "shape"));
  if (shape.size() < 2) return bad("it must be an array [..., head_dim] of at least two axes, none of them 0");
  if (shape.back() > kMaxHeadDim)
    return bad(fmt::format("vectors of {} channels: at most {}", shape.back(), kMaxHeadDim));
  Rows rows = {.n = 1, .head_dim = static_cast<int>(shape.back()), .values = {}};
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows.n *= shape[i];
  const size_t values = rows.n * shape.back();
  if ((text.size() - begin - length) / bytes < values) return bad("it is cut off");
  rows.values.resize(values);
  const char* data = text.data() + begin + length;
  for (size_t i = 0; i < values; ++i) {
    const char* p = data + i * bytes;
    rows.values[i] = bytes == 2   ? FromHalf(At<uint16_t>(p))
                     : bytes == 4 ? At<float>(p)
                                  : static_cast<float>(At<double>(p));
  }
  return rows;
}

std::string NpyHeader(const std::string& type, const std::vector<size_t>& shape) {
  constexpr size_t kPrefix = 10, kAlign = 64;
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, fmt::join(shape, ", "));
  text.append(kAlign - (kPrefix + text.size() + 1) % kAlign, ' ');
  text += '\n';
  const auto length = static_cast<uint16_t>(text.size());
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(length & 0xff) + static_cast<char>(length >> 8) + text;
}

}  // namespace tersekv::cli
