// SPDX-License-Identifier: Apache-2.0
// The packing of pack.h for widths known at compile time and rows of whole bytes: 8 codes of b bits are b bytes.
// Everything is inlined, so that it is compiled for the caller's SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tersekv {

namespace row_codes_internal {
template <class T>
struct Eight;
template <>
struct Eight<float> {
  using Type = float __attribute__((vector_size(32)));
};
template <>
struct Eight<uint8_t> {
  using Type = uint8_t __attribute__((vector_size(8)));
};
}  // namespace row_codes_internal

// Calls f(std::integral_constant<int, bits>). bits: 1..8.
template <class F>
[[gnu::always_inline]] inline void WithBits(int bits, F&& f) {
  switch (bits) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 7:
      return f(std::integral_constant<int, 7>());
    default:
      return f(std::integral_constant<int, 8>());
  }
}

// codes: [n], n a multiple of 8, each < 2^kBits. out: [n * kBits / 8]. Little-endian hosts, as everywhere here.
template <int kBits>
[[gnu::always_inline]] inline void PackRow(const uint8_t* codes, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n / 8; ++i) {
    uint64_t word = 0;
    for (size_t j = 0; j < 8; ++j) word |= static_cast<uint64_t>(codes[8 * i + j]) << (kBits * j);
    std::memcpy(out + i * kBits, &word, kBits);
  }
}

// Bytes in pieces that registers hold: assembling a word in memory would wait for its stores.
template <int kBits>
[[gnu::always_inline]] inline uint64_t LoadCodes(const uint8_t* in) {
  using First = std::conditional_t<kBits == 8, uint64_t, std::conditional_t<(kBits >= 4), uint32_t, uint16_t>>;
  if constexpr (kBits == 1) return in[0];
  First first;
  std::memcpy(&first, in, sizeof(first));
  uint64_t word = first;
  for (size_t j = sizeof(first); j < kBits; ++j) word |= static_cast<uint64_t>(in[j]) << (8 * j);
  return word;
}

// in: [n * kBits / 8]; out: [n] codes as uint8_t or float.
template <int kBits, class T>
[[gnu::always_inline]] inline void UnpackRow(const uint8_t* in, size_t n, T* out) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  using Codes = uint32_t __attribute__((vector_size(32)));  // shifts by lane, which loops don't become by themselves
  using Signed = int32_t __attribute__((vector_size(32)));
  using Values = typename row_codes_internal::Eight<T>::Type;
  const Codes shifts = {0, kBits, 2 * kBits, 3 * kBits, 0, kBits, 2 * kBits, 3 * kBits};
  for (size_t i = 0; i < n / 8; ++i) {
    const uint64_t word = LoadCodes<kBits>(in + i * kBits);
    const uint32_t low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> (4 * kBits));
    const Codes halves = {low, low, low, low, high, high, high, high};
    const Signed codes = (Signed)((halves >> shifts) & kMask);
    const Values values = __builtin_convertvector(codes, Values);
    std::memcpy(out + 8 * i, &values, sizeof(values));
  }
}

}  // namespace tersekv
