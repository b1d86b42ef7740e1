// SPDX-License-Identifier: Apache-2.0
// Bytes to words of a block, a lane's four units at once: what src/cuda/layout.h says bit by bit, as masks and shifts.
// tests/cuda/pack_test.cc holds one against the other.
#pragma once

#include <cstdint>

#include "src/base/host_device.h"
#include "src/cuda/layout.h"

namespace tersekv::cuda {

// Stored codes of a lane's four units in a group: byte e % 4 of code[unit][e / 4].
using UnitBytes = uint32_t[4][2];

namespace internal {

// The low four bits of eight bytes, a nibble each, in order.
TERSEKV_HOST_DEVICE inline uint32_t Nibbles(uint32_t first, uint32_t second) {
  first |= first >> 4;
  second |= second >> 4;
#ifdef __CUDA_ARCH__
  return __byte_perm(first, second, 0x6420);
#else
  return (first & 0xffu) | (first >> 8 & 0xff00u) | (second & 0xffu) << 16 | (second >> 16 & 0xffu) << 24;
#endif
}

// Bit `bit` of eight bytes: those of the first four at 8 e + high, of the others at 8 (e - 4) + low.
TERSEKV_HOST_DEVICE inline uint32_t Plane(const uint32_t (&code)[2], int bit, int high, int low) {
  constexpr uint32_t kOnes = 0x01010101u;
  return (code[0] >> bit & kOnes) << high | (code[1] >> bit & kOnes) << low;
}

}  // namespace internal

template <int bits>
TERSEKV_HOST_DEVICE inline void PackUnits(const UnitBytes& code, uint32_t (&words)[bits]) {
  using internal::Nibbles;
  using internal::Plane;
  if constexpr (bits == 8) {
    for (int i = 0; i < 8; ++i) words[i] = code[i / 2][i % 2];
  } else if constexpr (bits == 2) {
    for (int w = 0; w < 2; ++w) {
      words[w] = Nibbles(code[2 * w][0] & 0x03030303u, code[2 * w][1] & 0x03030303u) |
                 Nibbles(code[2 * w + 1][0] & 0x03030303u, code[2 * w + 1][1] & 0x03030303u) << 2;
    }
  } else {
    uint32_t low[4];
    for (int u = 0; u < 4; ++u) low[u] = Nibbles(code[u][0] & 0x07070707u, code[u][1] & 0x07070707u);
    for (int u = 0; u < (bits == 3 ? 3 : 4); ++u) {
      words[u] = low[u] | (bits == 3 ? (low[3] >> u & 0x11111111u) << 3 : Plane(code[u], 3, 7, 3));
    }
    if constexpr (bits >= 5) {
      for (int w = 4; w < bits; ++w) words[w] = 0;
      for (int u = 0; u < 4; ++u) {
        words[4] |= Plane(code[u], bits - 1, 7, 6) >> (2 * u);
        if constexpr (bits == 6) words[5] |= Plane(code[u], 4, 7, 6) >> (2 * u);
      }
    }
  }
}

}  // namespace tersekv::cuda
