// SPDX-License-Identifier: Apache-2.0
// The packing of pack.h for widths known at compile time and rows of whole bytes: 8 codes of b bits are b bytes.
// Everything is inlined, so that it is compiled for the caller's SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tersekv {

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

// in: [n * kBits / 8]; out: [n] codes as T.
template <int kBits, class T>
[[gnu::always_inline]] inline void UnpackRow(const uint8_t* in, size_t n, T* out) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  for (size_t i = 0; i < n / 8; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, in + i * kBits, kBits);
    const uint32_t low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> (4 * kBits));
    for (size_t j = 0; j < 4; ++j) out[8 * i + j] = static_cast<T>(static_cast<int>((low >> (kBits * j)) & kMask));
    for (size_t j = 0; j < 4; ++j) out[8 * i + 4 + j] = static_cast<T>(static_cast<int>((high >> (kBits * j)) & kMask));
  }
}

}  // namespace tersekv
