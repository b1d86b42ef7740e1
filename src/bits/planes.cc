// SPDX-License-Identifier: Apache-2.0
#include "src/bits/planes.h"

#include <cstring>

namespace tersekv {

void SetPlaneCode(uint8_t* row, size_t n, int bits, size_t i, uint8_t code) {
  ForEachPlane(n, bits, [&](int width, int shift, size_t offset) {
    const size_t m = n * static_cast<size_t>(width) / 8;
    const int at = static_cast<int>(i / m) * width;
    const unsigned mask = ((1u << width) - 1) << at;
    uint8_t& byte = row[offset + i % m];
    byte = static_cast<uint8_t>((byte & ~mask) | ((static_cast<unsigned>(code) >> shift << at) & mask));
  });
}

uint8_t GetPlaneCode(const uint8_t* row, size_t n, int bits, size_t i) {
  unsigned code = 0;
  ForEachPlane(n, bits, [&](int width, int shift, size_t offset) {
    const size_t m = n * static_cast<size_t>(width) / 8;
    const int at = static_cast<int>(i / m) * width;
    code |= ((row[offset + i % m] >> at) & ((1u << width) - 1)) << shift;
  });
  return static_cast<uint8_t>(code);
}

void PackPlanes(const uint8_t* codes, size_t n, int bits, uint8_t* row) {
  ForEachPlane(n, bits, [&](int width, int shift, size_t offset) {
    const size_t m = n * static_cast<size_t>(width) / 8;
    const unsigned mask = (1u << width) - 1;
    uint8_t* plane = row + offset;
    std::memset(plane, 0, m);
    for (size_t g = 0; g < n / m; ++g) {
      for (size_t j = 0; j < m; ++j) {
        const unsigned part = (static_cast<unsigned>(codes[g * m + j]) >> shift) & mask;
        plane[j] = static_cast<uint8_t>(plane[j] | (part << (static_cast<int>(g) * width)));
      }
    }
  });
}

void UnpackPlanes(const uint8_t* row, size_t n, int bits, uint8_t* codes) {
  std::memset(codes, 0, n);
  ForEachPlane(n, bits, [&](int width, int shift, size_t offset) {
    const size_t m = n * static_cast<size_t>(width) / 8;
    const unsigned mask = (1u << width) - 1;
    for (size_t i = 0; i < n; ++i) {
      const unsigned part = (row[offset + i % m] >> (static_cast<int>(i / m) * width)) & mask;
      codes[i] = static_cast<uint8_t>(codes[i] | (part << shift));
    }
  });
}

}  // namespace tersekv
