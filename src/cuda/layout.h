// SPDX-License-Identifier: Apache-2.0
// How a page lies in device memory: a bijection of the canonical records (docs/formats.md, "CUDA page"). Host and
// device read this one definition; tests/cuda/layout_test.cc shows that it is a bijection.
//
// pool = [pages][kv_heads][page_tokens / 16] blocks. A block holds 16 tokens of one KV head:
//   K codes | V codes | 16 bf16 K scales | 16 bf16 V scales            (raw types have no scales)
// Codes lie in groups of 64 channels. In a group each of a warp's 32 lanes owns `bits` words of 32 bits: 4 units of 8
// codes, placed so that a unit becomes operands of an m16n8k16 product without any exchange between lanes:
//   K unit u of lane 4g + c: token 2g + u%2, channels 32 (u/2) + 8c + e
//   V unit u of lane 4g + c: channels 16u + g + 8 (e/4), tokens 4c + e%4            (e = 0..7)
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersekv/cache.h"

namespace tersekv::cuda {

inline constexpr int kBlockTokens = 16;
inline constexpr int kGroupChannels = 64;
inline constexpr int kRawBits = 16;  // f16 and bf16

constexpr bool BitsSupported(int bits) { return (bits >= 2 && bits <= 6) || bits == 8 || bits == kRawBits; }

struct Place {
  int group, lane, unit, e;
};

constexpr Place PlaceOf(Kv side, int token, int channel) {
  const int d = channel % kGroupChannels, group = channel / kGroupChannels;
  if (side == Kv::kK) return {group, token / 2 * 4 + d % 32 / 8, d / 32 * 2 + token % 2, d % 8};
  return {group, d % 8 * 4 + token / 4, d / 16, d % 16 / 8 * 4 + token % 4};
}

// The bit of byte i of the first or second half of a unit that masks 0x80808080 of w and w << 4 see.
constexpr int HighBit(int e) { return e < 4 ? 8 * e + 7 : 8 * (e - 4) + 3; }

// Rows of V in transformed space (transformed.cu) keep what a lane has of a token together: the channel at place i.
constexpr int RowChannel(int i) { return i / 64 * 64 + i % 8 * 8 + i % 64 / 8; }

// Calls f(word, bit, width, shift): bits [shift, shift + width) of the stored code e of unit u are in the lane's word
// `word` from bit `bit` on.
template <class F>
constexpr void ForEachPiece(int bits, Kv side, int u, int e, F&& f) {
  switch (bits) {
    case 2:
      return f(u / 2, 4 * e + 2 * (u % 2), 2, 0);
    case 3:  // unit 3 takes the spare fourth bit of the nibbles of units 0 to 2
      if (u < 3) return f(u, 4 * e, 3, 0);
      for (int w = 0; w < 3; ++w) f(w, 4 * e + 3, 1, w);
      return;
    case 4:
      f(u, 4 * e, 3, 0);
      return f(u, HighBit(e), 1, 3);
    case 5:
    case 6: {
      const int plane = e < 4 ? 8 * e + 7 - 2 * u : 8 * (e - 4) + 6 - 2 * u;
      f(u, 4 * e, 3, 0);
      f(u, HighBit(e), 1, 3);
      if (bits == 6) f(5, plane, 1, 4);
      return f(4, plane, 1, bits - 1);
    }
    case 8:
      return f(2 * u + e / 4, 8 * (e % 4), 8, 0);
    default:  // raw: pairs as the product wants them
      if (side == Kv::kK) return f(4 * u + e / 2, 16 * (e % 2), 16, 0);
      return f(4 * u + e / 4 * 2 + e % 2, 16 * (e % 4 / 2), 16, 0);
  }
}

// Byte of word w of a lane in its group: words of 16 bytes a lane as far as they go, then what is left.
constexpr int WordOffset(int bits, int lane, int w) {
  const int whole = bits / 4 * 4;
  if (w < whole) return w / 4 * 512 + lane * 16 + w % 4 * 4;
  if (bits % 4 == 2) return whole * 128 + lane * 8 + (w - whole) * 4;
  return w * 128 + lane * 4;
}

constexpr int GroupBytes(int bits) { return 128 * bits; }
constexpr int CodeBytes(int bits, int d) { return d / kGroupChannels * GroupBytes(bits); }

// Offsets within a block.
struct BlockLayout {
  int k_bits, v_bits, d;

  constexpr int bits(Kv side) const { return side == Kv::kK ? k_bits : v_bits; }
  constexpr bool scaled() const { return k_bits != kRawBits; }
  constexpr int codes(Kv side) const { return side == Kv::kK ? 0 : CodeBytes(k_bits, d); }
  constexpr int scales(Kv side) const {
    return CodeBytes(k_bits, d) + CodeBytes(v_bits, d) + (side == Kv::kK ? 0 : 2 * kBlockTokens);
  }
  constexpr int bytes() const { return scales(Kv::kK) + (scaled() ? 4 * kBlockTokens : 0); }
};

// What a block stores of a canonical code: magnitude index and sign, so that a lookup needs half the table; 8 bits:
// level + 128.
constexpr int StoredCode(int bits, int code) {
  if (bits > 6) return bits == 8 ? code + 1 : code;
  const int half = 1 << (bits - 1);
  return code >= half ? code - half : (half - 1 - code) | half;
}
constexpr int CanonicalCode(int bits, int stored) {
  if (bits > 6) return bits == 8 ? stored - 1 : stored;
  const int half = 1 << (bits - 1);
  return stored < half ? half + stored : half - 1 - (stored - half);
}

}  // namespace tersekv::cuda
