// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_lookup.h"

#include <gtest/gtest.h>

#include <random>

namespace tersekv::cli {
namespace {

using Tokens = std::vector<int32_t>;

PromptLookup Of(const Tokens& tokens) {
  PromptLookup lookup;
  for (const int32_t token : tokens) lookup.Add(token);
  return lookup;
}

TEST(PromptLookup, FindsWhatFollowedTheNewestTokens) {
  EXPECT_EQ(Of({1, 2, 3, 4, 5, 6, 9, 1, 2, 3}).Draft(3), (Tokens{4, 5, 6}));
  EXPECT_EQ(Of({1, 2, 3, 4, 9, 8, 2, 3}).Draft(2), (Tokens{4, 9}));           // two are enough
  EXPECT_EQ(Of({1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3}).Draft(1), (Tokens{5}));     // the latest place
  EXPECT_EQ(Of({1, 2, 3, 4, 9, 2, 3, 5, 7, 1, 2, 3}).Draft(1), (Tokens{4}));  // three before two
}

TEST(PromptLookup, RunsAroundTheEndOfARepetition) {
  EXPECT_EQ(Of({7, 7, 7}).Draft(5), (Tokens{7, 7, 7, 7, 7}));
  EXPECT_EQ(Of({1, 2, 3, 1, 2, 3, 1, 2}).Draft(7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
}

TEST(PromptLookup, HasNothingForWhatIsNew) {
  EXPECT_TRUE(Of({}).Draft(4).empty());
  EXPECT_TRUE(Of({1}).Draft(4).empty());
  EXPECT_TRUE(Of({1, 1}).Draft(4).empty());
  EXPECT_TRUE(Of({1, 2, 3, 4, 5}).Draft(4).empty());
  EXPECT_TRUE(Of({7, 7, 7}).Draft(0).empty());
  EXPECT_TRUE(Of({7, 7, 7}).Draft(-1).empty());
}

TEST(PromptLookup, AgreesWithASearch) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Tokens tokens(2 + random() % 60);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    Tokens expected;
    for (size_t n = 3; n >= 2 && expected.empty(); --n) {
      for (size_t end = tokens.size() - 1; end >= n && n < tokens.size() && expected.empty(); --end) {
        if (!std::equal(tokens.end() - static_cast<ptrdiff_t>(n), tokens.end(),
                        tokens.begin() + static_cast<ptrdiff_t>(end - n))) {
          continue;
        }
        Tokens all = tokens;  // continued by copying, one token after another
        for (size_t i = 0; i < 5; ++i) all.push_back(all[end + i]);
        expected.assign(all.end() - 5, all.end());
      }
    }
    EXPECT_EQ(Of(tokens).Draft(5), expected);
  }
}

}  // namespace
}  // namespace tersekv::cli
