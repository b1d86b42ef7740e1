// SPDX-License-Identifier: Apache-2.0
// Blocks: how a page keeps a matrix code[k][n] for sums over k, so that SIMD turns bytes into operands of pairwise
// multiply-adds with shifts, masks and table lookups only. Scores sum over channels (n = tokens), outputs over tokens
// (n = channels); both use this one layout.
//
// A block holds 16 k x 32 n = 512 codes in `bits` rows of 64 bytes. Blocks are ordered [n / 32][k / 16].
// Byte 4l + b of a row belongs to n = 32 * (n / 32) + 16 * half + l and k = 16 * (k / 16) + step + 4b, where l < 16,
// b < 4; which half and step, and where their bits are, is ForEachPiece:
//   8 bits: row 2 * step + half holds the code.
//   4, 2, 1 bit planes, low bits first (5 = 4+1, 6 = 4+2, 7 = 4+2+1): a 4-bit row a step, one nibble a half; a 2-bit
//     row two steps; a 1-bit row four steps.
//   3 bits: row `step` holds the codes of steps 0..2 in the low three bits of its nibbles; bit w of a code of step 3 is
//   the
//     fourth bit of row w.
// In a 32-bit lane the bytes (0, 2) and (1, 3) are the pairs (k, k + 8): see kPairStride.
//
// When n ends with 16 that fill no block (head_dim 80, 112), their blocks hold 32 k x 16 n instead: half h is
// k = 32 * (k / 32) + 16 * h + ..., ordered [k / 32] behind the others. So nothing is padded; k is a multiple of 32
// then.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersekv {

inline constexpr size_t kBlockDepth = 16;     // k
inline constexpr size_t kBlockWidth = 32;     // n
inline constexpr size_t kBlockRowBytes = 64;  // of each of the `bits` rows
inline constexpr size_t kPairStride = 8;      // k and k + 8 of a block meet in one 32-bit lane

constexpr size_t BlockBytes(int bits) { return kBlockRowBytes * static_cast<size_t>(bits); }

// Calls f(row, bit, width, shift): bits [shift, shift + width) of the codes of this step (0..3) and half (0..1) are in
// `row` at bit `bit` of each byte.
template <class F>
constexpr void ForEachPiece(int bits, int step, int half, F&& f) {
  if (bits == 8) return f(2 * step + half, 0, 8, 0);
  if (bits == 3) {
    if (step < 3) return f(step, 4 * half, 3, 0);
    for (int w = 0; w < 3; ++w) f(w, 4 * half + 3, 1, w);
    return;
  }
  int row = 0, shift = 0;
  if ((bits & 4) != 0) {
    f(step, 4 * half, 4, 0);
    row = shift = 4;
  }
  if ((bits & 2) != 0) {
    f(row + step / 2, 4 * half + 2 * (step % 2), 2, shift);
    row += 2;
    shift += 2;
  }
  if ((bits & 1) != 0) f(row, 2 * step + half, 1, shift);
}

// Whether depth x width codes fill blocks.
constexpr bool FillsBlocks(size_t depth, size_t width) {
  return width % (kBlockWidth / 2) == 0 && depth % (width % kBlockWidth == 0 ? kBlockDepth : 2 * kBlockDepth) == 0;
}

// codes: depth x width codes that fill blocks; values of other places stay.
void SetBlockRow(uint8_t* codes, int bits, size_t depth, size_t width, size_t k, const uint8_t* row);  // row: [width]
// column: [depth]; n: of a block of 32 n
void SetBlockColumn(uint8_t* codes, int bits, size_t depth, size_t n, const uint8_t* column);
uint8_t GetBlockCode(const uint8_t* codes, int bits, size_t depth, size_t width, size_t k, size_t n);

}  // namespace tersekv
