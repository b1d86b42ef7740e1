// SPDX-License-Identifier: Apache-2.0
// Plane rows: how a page keeps one row of n codes so that SIMD unpacks it with shifts and masks only.
//
// A width is a sum of planes of 4, 2 and 1 bits (8 = one plane of bytes), low bits first: 3 = 2+1, 5 = 4+1, 6 = 4+2,
// 7 = 4+2+1. A plane of w bits takes m = n*w/8 bytes; bits [g*w, g*w+w) of byte j belong to code g*m + j. Thus a shift
// by g*w and a mask give m neighbouring codes. n is a multiple of 8.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersekv {

inline constexpr int kPlaneWidths[] = {8, 4, 2, 1};

inline constexpr size_t PlaneRowBytes(size_t n, int bits) { return n * static_cast<size_t>(bits) / 8; }

// Calls f(width, shift, offset): a plane of `width` bits holds bits [shift, shift+width) of every code and starts
// `offset` bytes into the row.
template <class F>
constexpr void ForEachPlane(size_t n, int bits, F&& f) {
  size_t offset = 0;
  int shift = 0;
  for (const int width : kPlaneWidths) {
    if (bits - shift < width) continue;
    f(width, shift, offset);
    offset += n * static_cast<size_t>(width) / 8;
    shift += width;
  }
}

// Sets code i of a row of n; the row's other codes stay.
void SetPlaneCode(uint8_t* row, size_t n, int bits, size_t i, uint8_t code);
uint8_t GetPlaneCode(const uint8_t* row, size_t n, int bits, size_t i);

// Whole rows.
void PackPlanes(const uint8_t* codes, size_t n, int bits, uint8_t* row);
void UnpackPlanes(const uint8_t* row, size_t n, int bits, uint8_t* codes);

}  // namespace tersekv
