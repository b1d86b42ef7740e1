// SPDX-License-Identifier: Apache-2.0
#include "src/bits/blocks.h"

namespace tersekv {
namespace {

struct Place {
  size_t byte;  // in row 0 of the block
  int half;
};

// Of (k, n).
Place PlaceOf(int bits, size_t depth, size_t width, size_t k, size_t n) {
  const bool narrow = n >= width / kBlockWidth * kBlockWidth;  // a block of 32 k x 16 n
  const size_t m = k / kBlockDepth;
  const size_t block = n / kBlockWidth * (depth / kBlockDepth) + (narrow ? m / 2 : m);
  return {block * BlockBytes(bits) + 4 * (n % 16) + (k % kBlockDepth) / 4,
          static_cast<int>(narrow ? m % 2 : n % kBlockWidth / 16)};
}

void Put(uint8_t* byte, int bit, int width, unsigned value) {
  const unsigned mask = (1u << width) - 1;
  *byte = static_cast<uint8_t>((*byte & ~(mask << bit)) | ((value & mask) << bit));
}

}  // namespace

void SetBlockRow(uint8_t* codes, int bits, size_t depth, size_t width, size_t k, const uint8_t* row) {
  const int step = static_cast<int>(k % 4);
  for (size_t n = 0; n < width; n += 16) {
    const Place place = PlaceOf(bits, depth, width, k, n);
    ForEachPiece(bits, step, place.half, [&](int r, int bit, int piece, int shift) {
      uint8_t* to = codes + place.byte + static_cast<size_t>(r) * kBlockRowBytes;
      for (size_t l = 0; l < 16; ++l) Put(to + 4 * l, bit, piece, static_cast<unsigned>(row[n + l]) >> shift);
    });
  }
}

void SetBlockColumn(uint8_t* codes, int bits, size_t depth, size_t n, const uint8_t* column) {
  const Place place = PlaceOf(bits, depth, (n / kBlockWidth + 1) * kBlockWidth, 0, n);
  for (int step = 0; step < 4; ++step) {
    ForEachPiece(bits, step, place.half, [&](int r, int bit, int piece, int shift) {
      uint8_t* to = codes + place.byte + static_cast<size_t>(r) * kBlockRowBytes;
      for (size_t k = static_cast<size_t>(step); k < depth; k += kBlockDepth, to += BlockBytes(bits)) {
        for (size_t b = 0; b < 4; ++b) Put(to + b, bit, piece, static_cast<unsigned>(column[k + 4 * b]) >> shift);
      }
    });
  }
}

uint8_t GetBlockCode(const uint8_t* codes, int bits, size_t depth, size_t width, size_t k, size_t n) {
  const Place place = PlaceOf(bits, depth, width, k, n);
  unsigned code = 0;
  ForEachPiece(bits, static_cast<int>(k % 4), place.half, [&](int r, int bit, int piece, int shift) {
    const unsigned byte = codes[place.byte + static_cast<size_t>(r) * kBlockRowBytes];
    code |= ((byte >> bit) & ((1u << piece) - 1)) << shift;
  });
  return static_cast<uint8_t>(code);
}

}  // namespace tersekv
