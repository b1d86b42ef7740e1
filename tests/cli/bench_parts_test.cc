// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cli/bench_lists.h"
#include "cli/options.h"
#include "cli/statistics.h"

namespace tersekv::cli {
namespace {

TEST(Spread, MedianAndQuartilesAreLinearBetweenSamples) {
  const Spread one = SpreadOf({3});
  EXPECT_EQ(one.median, 3);
  EXPECT_EQ(one.low, 3);
  EXPECT_EQ(one.high, 3);
  const Spread five = SpreadOf({5, 1, 4, 2, 3});
  EXPECT_EQ(five.median, 3);
  EXPECT_EQ(five.low, 2);
  EXPECT_EQ(five.high, 4);
  const Spread four = SpreadOf({4, 1, 3, 2});
  EXPECT_EQ(four.median, 2.5);
  EXPECT_EQ(four.low, 1.75);
  EXPECT_EQ(four.high, 3.25);
}

TEST(BenchLists, SplitAtCommas) {
  EXPECT_EQ(SplitList(" f16, q8_0 ,,q4_0"), (std::vector<std::string>{"f16", "q8_0", "q4_0"}));
  EXPECT_TRUE(SplitList("").empty());
}

TEST(BenchLists, DepthsAreTokens) {
  EXPECT_EQ(*ParseDepths("0, 4096"), (std::vector<int64_t>{0, 4096}));
  for (const char* bad : {"", ",", "4k", "-1", "1.5", "99999999999999999999", "1073741824"}) {
    const auto depths = ParseDepths(bad);
    ASSERT_FALSE(depths) << bad;
    EXPECT_NE(depths.error().message().find("--depths"), std::string::npos);
  }
}

TEST(Arithmetic, EveryNameIsItsOwn) {
  EXPECT_EQ(ArithmeticOf("int16"), Arithmetic::kInt16);
  EXPECT_EQ(ArithmeticOf("exact"), Arithmetic::kExact);
  EXPECT_EQ(ArithmeticOf("fast"), Arithmetic::kFast);
}

}  // namespace
}  // namespace tersekv::cli
