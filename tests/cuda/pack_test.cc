// SPDX-License-Identifier: Apache-2.0
// Words made of bytes at once are those that the layout describes bit by bit.
#include "src/cuda/pack.h"

#include <gtest/gtest.h>

#include <random>

namespace tersekv::cuda {
namespace {

template <int bits>
void WordsAreThoseOfTheLayout(Kv side) {
  std::mt19937 random(static_cast<unsigned>(bits));
  for (int round = 0; round < 200; ++round) {
    UnitBytes code;
    for (auto& unit : code) {
      for (uint32_t& four : unit) {
        four = random() & ((1u << bits) - 1) * 0x01010101u;
        if (round == 0) four = ((1u << bits) - 1) * 0x01010101u;
      }
    }
    uint32_t want[bits] = {}, got[bits];
    for (int u = 0; u < 4; ++u) {
      for (int e = 0; e < 8; ++e) {
        ForEachPiece(bits, side, u, e, [&](int word, int bit, int width, int shift) {
          want[word] |= (code[u][e / 4] >> (8 * (e % 4) + shift) & ((1u << width) - 1)) << bit;
        });
      }
    }
    PackUnits<bits>(code, got);
    for (int w = 0; w < bits; ++w) ASSERT_EQ(got[w], want[w]) << bits << " bits, word " << w << ", round " << round;
  }
}

TEST(CudaPack, WordsAreThoseOfTheLayout) {
  for (const Kv side : {Kv::kK, Kv::kV}) {
    WordsAreThoseOfTheLayout<2>(side);
    WordsAreThoseOfTheLayout<3>(side);
    WordsAreThoseOfTheLayout<4>(side);
    WordsAreThoseOfTheLayout<5>(side);
    WordsAreThoseOfTheLayout<6>(side);
    WordsAreThoseOfTheLayout<8>(side);
  }
}

}  // namespace
}  // namespace tersekv::cuda
