// SPDX-License-Identifier: Apache-2.0
// Truncate, fork and remove: what is left answers as the contract says, sharing is by pages, nothing leaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tests/cache/specs.h"
#include "tests/reference/checker.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Checker;
using reference::Model;
using reference::Random;
using reference::StepResult;
using reference::Token;

constexpr double kTolerance = 2e-5;
class Sequences : public ::testing::TestWithParam<const char*> {};

// A 300-token sequence cut to every length, then grown past the end of the statistics again.
TEST_P(Sequences, TruncateAtEveryLengthThenAppend) {
  const Model model = reference::MakeModel(GetParam(), {{2, 1, 32, 32}});
  for (int keep = 0; keep <= 300; ++keep) {
    SCOPED_TRACE("keep " + std::to_string(keep));
    auto cache = reference::MakeCache(model);
    Checker checker(model);
    const std::vector<Token> prompt = reference::TokenRun(0, 0, 300);
    (void)reference::RunStep(cache.get(), model, prompt);
    checker.Append(prompt);
    ASSERT_TRUE(cache->Truncate(0, keep).ok());
    checker.Truncate(0, keep);
    ASSERT_EQ(cache->Length(0), keep);
    ASSERT_EQ(cache->LastPosition(0), keep - 1);
    int32_t at = keep;
    for (const int n : {1, 2, 150}) {  // other tokens than before
      const std::vector<Token> step = reference::TokenRun(0, at, n, 1);
      const StepResult result = reference::RunStep(cache.get(), model, step);
      checker.Append(step);
      ASSERT_LE(checker.Compare(step, result, 70).out, kTolerance);
      at += n;
    }
  }
}

// Cuts in a row, with and without tokens between them, and steps that are aborted.
TEST_P(Sequences, TruncateAgainAndAgain) {
  const Model model = reference::MakeModel(GetParam(), kTwoLayers);
  auto cache = reference::MakeCache(model);
  Checker checker(model);
  Random random(8);
  int32_t length = 0;
  uint64_t stream = 0;
  for (int round = 0; round < 60; ++round) {
    if (random.Below(3) == 0) {
      const std::vector<Token> lost = reference::TokenRun(0, length, 1 + static_cast<int>(random.Below(200)), 999);
      ASSERT_TRUE(cache->BeginStep(reference::StepTokens(lost)).ok());
      reference::WriteAll(cache.get(), model, lost);
      cache->AbortStep();
    }
    const std::vector<Token> step = reference::TokenRun(0, length, 1 + static_cast<int>(random.Below(120)), ++stream);
    const StepResult result = reference::RunStep(cache.get(), model, step);
    checker.Append(step);
    ASSERT_LE(checker.Compare(step, result, 23).out, kTolerance) << "round " << round;
    length += static_cast<int32_t>(step.size());
    for (size_t cut = random.Below(3); cut > 0; --cut) {
      const int32_t least = random.Below(8) == 0 ? 0 : std::max(length - 150, 0);
      length = least + static_cast<int32_t>(random.Below(static_cast<size_t>(length - least + 1)));
      ASSERT_TRUE(cache->Truncate(0, length).ok());
      checker.Truncate(0, length);
      ASSERT_EQ(cache->Length(0), length);
    }
  }
}

// Parent and child go on with different tokens; both equal twins that never shared anything, bit for bit.
TEST_P(Sequences, ForksDivergeWithoutTouchingEachOther) {
  const Model model = reference::MakeModel(GetParam(), kTwoLayers);
  for (const int common : {1, 60, 131, 200, 331}) {
    auto forked = reference::MakeCache(model);
    const std::vector<Token> prompt = reference::TokenRun(0, 0, common);
    (void)reference::RunStep(forked.get(), model, prompt);
    ASSERT_TRUE(forked->Fork(0, 1).ok());
    ASSERT_TRUE(forked->Fork(1, 2).ok());
    ASSERT_EQ(forked->Length(1), common);
    std::unique_ptr<KvCache> twins[3];
    for (auto& twin : twins) {
      twin = reference::MakeCache(model);
      (void)reference::RunStep(twin.get(), model, prompt);
    }
    int32_t at = common;
    for (const int n : {1, 1, 70, 1, 130}) {
      std::vector<Token> all;
      for (int s = 0; s < 3; ++s) {
        const std::vector<Token> part = reference::TokenRun(s, at, n, static_cast<uint64_t>(s + 1));
        all.insert(all.end(), part.begin(), part.end());
      }
      const StepResult together = reference::RunStep(forked.get(), model, all);
      for (size_t s = 0; s < 3; ++s) {
        const StepResult expected =
            reference::RunStep(twins[s].get(), model, reference::TokenRun(0, at, n, static_cast<uint64_t>(s + 1)));
        const size_t count = static_cast<size_t>(n);
        ASSERT_TRUE(reference::Slice(model, together, s * count, count) == expected)
            << "common " << common << ", at " << at << ", fork " << s;
      }
      at += n;
    }
    forked->Remove(0);
    const std::vector<Token> last = reference::TokenRun(2, at, 3, 3);
    std::vector<Token> same = last;
    for (Token& token : same) token.seq = 0;
    ASSERT_TRUE(reference::RunStep(forked.get(), model, last) == reference::RunStep(twins[2].get(), model, same));
  }
}

// A child cut back into shared pages and grown differently leaves its parent alone.
TEST_P(Sequences, TruncatedForkLeavesTheParentAlone) {
  const Model model = reference::MakeModel(GetParam(), kTwoLayers);
  for (const int keep : {0, 3, 64, 100, 191, 192, 193, 256, 260, 299}) {
    auto cache = reference::MakeCache(model), twin = reference::MakeCache(model);
    const std::vector<Token> prompt = reference::TokenRun(0, 0, 300);
    (void)reference::RunStep(cache.get(), model, prompt);
    (void)reference::RunStep(twin.get(), model, prompt);
    ASSERT_TRUE(cache->Fork(0, 1).ok());
    ASSERT_TRUE(cache->Truncate(1, keep).ok());
    (void)reference::RunStep(cache.get(), model, reference::TokenRun(1, keep, 400, 7));
    const std::vector<Token> next = reference::TokenRun(0, 300, 2);
    ASSERT_TRUE(reference::RunStep(cache.get(), model, next) == reference::RunStep(twin.get(), model, next)) << keep;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Sequences, ::testing::ValuesIn(kSpecs));

TEST(Fork, SharesPagesUntilOneSideWrites) {
  const Model model = reference::MakeModel("k4v4", {{4, 2, 64, 64}, {4, 2, 64, 64}});
  auto cache = reference::MakeCache(model);
  (void)reference::RunStep(cache.get(), model, reference::TokenRun(0, 0, 1000));
  const CacheUsage before = cache->Usage();
  const size_t page = 2 * 64 * (64 * 4 / 8 + 2) * 2;  // 2 KV heads, 64 tokens, codes and scale, K and V
  ASSERT_EQ(before.pages, 2 * 14 * page);             // (1000 - 132) / 64 = 13.6
  ASSERT_TRUE(cache->Fork(0, 1).ok());
  const CacheUsage shared = cache->Usage();
  EXPECT_EQ(shared.pages, before.pages);
  EXPECT_EQ(shared.stats, before.stats);
  EXPECT_EQ(shared.raw_rows, 2 * before.raw_rows);
  EXPECT_EQ(shared.tokens, 2000);
  (void)reference::RunStep(cache.get(), model, reference::TokenRun(1, 1000, 1, 1));
  EXPECT_EQ(cache->Usage().pages, before.pages + 2 * page) << "the open page of each layer";
  (void)reference::RunStep(cache.get(), model, reference::TokenRun(0, 1000, 1));
  EXPECT_EQ(cache->Usage().pages, before.pages + 2 * page) << "the parent is the only owner of its open page now";
  cache->Remove(0);
  EXPECT_EQ(cache->Usage().pages, before.pages) << "the child holds every page";
}

TEST(Remove, FreesEverything) {
  for (const char* spec : kSpecs) {
    const Model model = reference::MakeModel(spec, kTwoLayers);
    auto cache = reference::MakeCache(model);
    size_t idle = 0;
    for (int round = 0; round < 3; ++round) {
      (void)reference::RunStep(cache.get(), model, reference::TokenRun(4, 0, 500));
      ASSERT_TRUE(cache->Fork(4, 5).ok());
      (void)reference::RunStep(cache.get(), model, reference::TokenRun(5, 500, 90, 1));
      ASSERT_TRUE(cache->Truncate(4, 200).ok());
      cache->Remove(5);
      cache->Remove(5);  // unknown by now
      ASSERT_TRUE(cache->Truncate(4, 0).ok());
      const CacheUsage usage = cache->Usage();
      EXPECT_EQ(usage.bytes_used, 0u) << spec;
      EXPECT_EQ(usage.tokens, 0) << spec;
      EXPECT_EQ(usage.bits_effective, 0) << spec;
      EXPECT_EQ(cache->Length(4), 0);
      // Only idle pages stay, and they are taken again before new ones.
      EXPECT_EQ(usage.bytes_reserved, round > 0 ? idle : usage.bytes_reserved) << spec;
      idle = usage.bytes_reserved;
    }
  }
}

TEST(Truncate, ToTheSameOrMoreTokensChangesNothing) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  (void)reference::RunStep(cache.get(), model, reference::TokenRun(0, 0, 300));
  const size_t used = cache->Usage().bytes_used;
  ASSERT_TRUE(cache->Truncate(0, 300).ok());
  ASSERT_TRUE(cache->Truncate(0, 5000).ok());
  ASSERT_TRUE(cache->Truncate(77, 3).ok());  // an unknown id is an empty sequence
  EXPECT_EQ(cache->Length(0), 300);
  EXPECT_EQ(cache->Usage().bytes_used, used);
  EXPECT_EQ(cache->Truncate(0, -1).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tersekv
