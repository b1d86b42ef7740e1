// SPDX-License-Identifier: Apache-2.0
#include "src/bits/blocks.h"

namespace tersekv {
namespace {

// Byte of (k, n) in row 0 of its block.
size_t ByteOf(int bits, size_t depth, size_t k, size_t n) {
  const size_t block = (n / kBlockWidth) * (depth / kBlockDepth) + k / kBlockDepth;
  return block * BlockBytes(bits) + 4 * (n % 16) + (k % kBlockDepth) / 4;
}

void Put(uint8_t* byte, int bit, int width, unsigned value) {
  const unsigned mask = (1u << width) - 1;
  *byte = static_cast<uint8_t>((*byte & ~(mask << bit)) | ((value & mask) << bit));
}

}  // namespace

void SetBlockRow(uint8_t* codes, int bits, size_t depth, size_t width, size_t k, const uint8_t* row) {
  const int step = static_cast<int>(k % 4);
  for (int half = 0; half < 2; ++half) {
    ForEachPiece(bits, step, half, [&](int r, int bit, int piece, int shift) {
      for (size_t n = static_cast<size_t>(16 * half); n < width; n += kBlockWidth) {
        uint8_t* to = codes + ByteOf(bits, depth, k, n) + static_cast<size_t>(r) * kBlockRowBytes;
        for (size_t l = 0; l < 16; ++l) Put(to + 4 * l, bit, piece, static_cast<unsigned>(row[n + l]) >> shift);
      }
    });
  }
}

void SetBlockColumn(uint8_t* codes, int bits, size_t depth, size_t n, const uint8_t* column) {
  const int half = static_cast<int>(n % kBlockWidth / 16);
  for (int step = 0; step < 4; ++step) {
    ForEachPiece(bits, step, half, [&](int r, int bit, int piece, int shift) {
      uint8_t* to = codes + ByteOf(bits, depth, 0, n) + static_cast<size_t>(r) * kBlockRowBytes;
      for (size_t k = static_cast<size_t>(step); k < depth; k += kBlockDepth, to += BlockBytes(bits)) {
        for (size_t b = 0; b < 4; ++b) Put(to + b, bit, piece, static_cast<unsigned>(column[k + 4 * b]) >> shift);
      }
    });
  }
}

uint8_t GetBlockCode(const uint8_t* codes, int bits, size_t depth, size_t k, size_t n) {
  const uint8_t* at = codes + ByteOf(bits, depth, k, n);
  unsigned code = 0;
  ForEachPiece(bits, static_cast<int>(k % 4), static_cast<int>(n % kBlockWidth / 16),
               [&](int r, int bit, int piece, int shift) {
                 const unsigned byte = at[static_cast<size_t>(r) * kBlockRowBytes];
                 code |= ((byte >> bit) & ((1u << piece) - 1)) << shift;
               });
  return static_cast<uint8_t>(code);
}

}  // namespace tersekv
