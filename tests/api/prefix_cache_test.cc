// SPDX-License-Identifier: Apache-2.0
// Shared starts: what follows is what a fresh sequence gives, to the bit, and pages count once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tersekv/prefix.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::RunStep;
using reference::Token;

// Token i of a text that branches off at `branch`.
int32_t TextToken(int i, int branch, int text) { return i < branch ? i * 31 % 1000 : 5000 + text * 1000 + i; }

std::vector<int32_t> Text(int length, int branch = 1 << 20, int text = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(TextToken(i, branch, text));
  return tokens;
}

// Rows of a model follow from the tokens so far, here from position and token.
std::vector<Token> Step(int32_t seq, const std::vector<int32_t>& text, size_t begin, size_t end) {
  std::vector<Token> tokens;
  for (size_t i = begin; i < end; ++i) {
    tokens.push_back({seq, static_cast<int32_t>(i), static_cast<uint64_t>(text[i]) << 20 | i});
  }
  return tokens;
}

class Prefix : public ::testing::TestWithParam<const char*> {};

TEST_P(Prefix, AStartTakenOverEqualsAFreshOne) {
  Model model = reference::MakeModel(GetParam(), {{2, 1, 32, 32}, {4, 2, 32, 64}});
  for (const int rollback : {0, 4}) {
    for (const int shared : {40, 130, 300, 517}) {
      model.config.rollback = rollback;
      auto cache = reference::MakeCache(model);
      PrefixCache starts(cache.get());
      const std::vector<int32_t> system = Text(shared);
      (void)RunStep(cache.get(), model, Step(0, system, 0, system.size()));
      ASSERT_TRUE(starts.Keep(0, system).ok());
      ASSERT_TRUE(starts.Keep(0, system).ok());
      EXPECT_EQ(starts.size(), 1u) << "the same";
      const CacheUsage one = cache->Usage();
      for (int text = 1; text <= 3; ++text) {
        const std::vector<int32_t> whole = Text(shared + 150, shared - (text == 3 ? rollback : 0), text);
        const Result<int64_t> there = starts.Begin(text, whole, static_cast<int64_t>(whole.size()) - 1);
        ASSERT_TRUE(there);
        ASSERT_EQ(*there, shared - (text == 3 ? rollback : 0));
        EXPECT_EQ(cache->Usage().pages, one.pages) << "shared pages count once";
        EXPECT_EQ(cache->Usage().stats, one.stats) << "one record of statistics";
        auto fresh = reference::MakeCache(model);
        const size_t n = static_cast<size_t>(*there);
        (void)RunStep(fresh.get(), model, Step(text, whole, 0, n));
        ASSERT_TRUE(RunStep(cache.get(), model, Step(text, whole, n, whole.size())) ==
                    RunStep(fresh.get(), model, Step(text, whole, n, whole.size())))
            << shared << " " << text;
        cache->Remove(text);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Prefix,
                         ::testing::Values("k4v4", "k4v4+sink=0+win=0", "kivi-k4v4+page=64+win=30+sink=2", "f16"));

TEST(PrefixCache, TakesTheLongestThatIsExact) {
  Model model = reference::MakeModel("k4v4", {{2, 1, 32, 32}});
  auto cache = reference::MakeCache(model);
  PrefixCache starts(cache.get(), 2);
  const std::vector<int32_t> text = Text(400);
  for (const size_t end : {100u, 200u, 300u}) {
    const size_t begin = static_cast<size_t>(cache->Length(0));
    (void)RunStep(cache.get(), model, Step(0, text, begin, end));
    ASSERT_TRUE(starts.Keep(0, Text(static_cast<int>(end))).ok());
  }
  EXPECT_EQ(starts.size(), 2u) << "the first one went";
  const auto begin = [&](const std::vector<int32_t>& wanted, int64_t most) {
    cache->Remove(1);
    return starts.Begin(1, wanted, most).value();
  };
  EXPECT_EQ(begin(text, 400), 300);
  EXPECT_EQ(begin(text, 299), 200) << "a cut of one token is not exact without rollback";
  EXPECT_EQ(begin(Text(400, 250, 1), 400), 200);
  EXPECT_EQ(begin(Text(400, 199, 1), 400), 0);
  EXPECT_EQ(begin({}, 0), 0);
  EXPECT_EQ(begin(Text(50), 49), 0);
  EXPECT_EQ(begin(text, 400), 300);
  EXPECT_EQ(starts.Begin(1, text, 400).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(starts.Keep(0, Text(7)).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(starts.Evict());
  EXPECT_TRUE(starts.Evict());
  EXPECT_FALSE(starts.Evict());
  cache->Remove(0);
  cache->Remove(1);
  EXPECT_EQ(cache->Usage().bytes_used, 0u);
}

// Whatever takes tokens out of a kept start: it is no longer offered, and can be kept again.
TEST(PrefixCache, ForgetsStartsThatWereRemoved) {
  Model model = reference::MakeModel("k4v4", {{2, 1, 32, 32}});
  constexpr int32_t kFirst = 50;
  const std::vector<int32_t> text = Text(300);
  const std::vector<void (*)(KvCache*)> removals = {
      [](KvCache* cache) { cache->Keep(0); },
      [](KvCache* cache) { cache->Remove(kFirst); },
      [](KvCache* cache) { ASSERT_TRUE(cache->Truncate(kFirst, 10).ok()); },
      [](KvCache* cache) { ASSERT_TRUE(cache->RemoveRange(kFirst, 140, 150).ok()); },
  };
  for (size_t i = 0; i < removals.size(); ++i) {
    SCOPED_TRACE(i);
    auto cache = reference::MakeCache(model);
    PrefixCache starts(cache.get(), 16, kFirst);
    (void)RunStep(cache.get(), model, Step(0, text, 0, text.size()));
    ASSERT_TRUE(starts.Keep(0, text).ok());
    removals[i](cache.get());
    const Result<int64_t> there = starts.Begin(1, text, 300);
    ASSERT_TRUE(there) << there.status().ToString();
    EXPECT_EQ(*there, 0);
    EXPECT_EQ(cache->Length(1), 0);
    EXPECT_EQ(starts.size(), 0u);
    ASSERT_TRUE(starts.Keep(0, text).ok());
    EXPECT_EQ(starts.Begin(1, text, 300).value(), 300) << "kept again";
  }
  // Keep alone must not take a removed start for one that is there.
  auto cache = reference::MakeCache(model);
  PrefixCache starts(cache.get());
  (void)RunStep(cache.get(), model, Step(0, text, 0, text.size()));
  ASSERT_TRUE(starts.Keep(0, text).ok());
  cache->Keep(0);
  ASSERT_TRUE(starts.Keep(0, text).ok());
  EXPECT_EQ(starts.Begin(1, text, 300).value(), 300);
}

TEST(PrefixCache, GivesWayToABudget) {
  Model model = reference::MakeModel("k4v4", {{2, 1, 32, 32}});
  model.config.byte_budget = 160u << 10;
  auto cache = reference::MakeCache(model);
  PrefixCache starts(cache.get());
  for (int text = 0; text < 12; ++text) {
    const std::vector<int32_t> tokens = Text(200, 0, text);
    while (cache->TokensThatFit(0) < 200) ASSERT_TRUE(starts.Evict());
    (void)RunStep(cache.get(), model, Step(0, tokens, 0, tokens.size()));
    ASSERT_TRUE(starts.Keep(0, tokens).ok());
    cache->Remove(0);
    ASSERT_LE(cache->Usage().bytes_reserved, model.config.byte_budget);
  }
  EXPECT_GT(starts.size(), 0u);
  EXPECT_LT(starts.size(), 12u);
}

}  // namespace
}  // namespace tersekv
