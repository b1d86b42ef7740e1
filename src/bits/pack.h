// SPDX-License-Identifier: Apache-2.0
// Canonical packing: codes in order, little-endian bit order (code 0 in the lowest bits of byte 0).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersekv {

inline constexpr size_t PackedBytes(size_t n, int bits) { return (n * static_cast<size_t>(bits) + 7) / 8; }

// codes: [n], each < 2^bits, bits in 1..8. out: [PackedBytes(n, bits)]; bits past the last code are 0.
void PackBits(const uint8_t* codes, size_t n, int bits, uint8_t* out);
void UnpackBits(const uint8_t* in, size_t n, int bits, uint8_t* codes);

}  // namespace tersekv
