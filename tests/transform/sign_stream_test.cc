// SPDX-License-Identifier: Apache-2.0
#include "src/transform/sign_stream.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <vector>

namespace tersekv {
namespace {

// docs/decisions/0001-contract.md, section 3
TEST(SignStream, GoldenWords) {
  EXPECT_EQ(SignWord(0, 0, 0, false, 0), 0x2130748aaac80268u);
  EXPECT_EQ(SignWord(0, 0, 0, false, 1), 0x2a4f111b3be57715u);
  EXPECT_EQ(SignWord(0, 0, 0, true, 0), 0xd9eef7f073d37c42u);
  EXPECT_EQ(SignWord(0, 3, 2, false, 0), 0xc46623c01a4674d8u);
}

// The second Hadamard round and prod's projection have streams of their own (docs/numerics.md).
TEST(SignStream, GoldenWordsOfDerivedStreams) {
  const uint64_t second = DerivedSeed(0, kSecondRound), projection = DerivedSeed(0, kProjection);
  EXPECT_EQ(second, 0x8cfc4d34ccd2f469u);
  EXPECT_EQ(SignWord(second, 0, 0, false, 0), 0xcbb736bae1b51f01u);
  EXPECT_EQ(SignWord(second, 0, 0, false, 1), 0xfda26d8ff87489b3u);
  EXPECT_EQ(SignWord(second, 3, 2, true, 0), 0x12f710410fdbb25fu);
  EXPECT_EQ(projection, 0x5a376cec5b6736c1u);
  EXPECT_EQ(SignWord(projection, 0, 0, false, 0), 0xcc3970b881f18ac5u);
}

// The first outputs of the published SplitMix64 with state 0.
TEST(SignStream, MixIsSplitMix64) {
  EXPECT_EQ(Mix(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(Mix(0x9E3779B97F4A7C15u), 0x6e789e6aa1b965f4u);
}

TEST(SignStream, SignsAreTheBitsOfTheWords) {
  for (const int d : {8, 32, 64, 96, 128, 1024}) {
    std::vector<float> signs(static_cast<size_t>(d) + 1, 7.0f);
    FillSigns(9, 3, 2, true, d, signs.data());
    for (int j = 0; j < d; ++j) {
      const uint64_t word = SignWord(9, 3, 2, true, j / 64);
      ASSERT_EQ(signs[static_cast<size_t>(j)], word & (uint64_t{1} << (j % 64)) ? -1.0f : 1.0f) << j;
    }
    EXPECT_EQ(signs.back(), 7.0f);
  }
}

TEST(SignStream, FirstSignsOfTheGoldenWord) {
  float signs[8];
  FillSigns(0, 0, 0, false, 8, signs);  // 0x68 = 01101000b, lowest bit first
  const float expected[] = {1, 1, 1, -1, 1, -1, -1, 1};
  for (int j = 0; j < 8; ++j) EXPECT_EQ(signs[j], expected[j]) << j;
}

TEST(SignStream, EveryStreamDiffersAndIsBalanced) {
  std::set<uint64_t> words;
  int ones = 0, count = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) {
    for (int layer = 0; layer < 16; ++layer) {
      for (int head = 0; head < 8; ++head) {
        for (const bool value_side : {false, true}) {
          for (int word = 0; word < 4; ++word) {
            const uint64_t bits = SignWord(seed, layer, head, value_side, word);
            EXPECT_TRUE(words.insert(bits).second);
            ones += std::popcount(bits);
            ++count;
          }
        }
      }
    }
  }
  EXPECT_NEAR(ones / (64.0 * count), 0.5, 0.006);  // 5 standard deviations
}

}  // namespace
}  // namespace tersekv
