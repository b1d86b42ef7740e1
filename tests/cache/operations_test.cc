// SPDX-License-Identifier: Apache-2.0
// Removing, copying, keeping and shifting ranges, taking back drafts, and the pages of windowed layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tests/cache/specs.h"
#include "tests/reference/checker.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"
#include "tests/reference/token_list.h"

namespace tersekv {
namespace {

using reference::Checker;
using reference::Model;
using reference::RunStep;
using reference::StepResult;
using reference::Token;
using reference::TokenLists;
using reference::TokenRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTolerance = 2e-5;
std::vector<int32_t> PositionsOf(const KvCache& cache, int32_t seq) {
  const std::span<const int32_t> positions = cache.Positions(seq);
  return {positions.begin(), positions.end()};
}

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> all(static_cast<size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

class Operations : public ::testing::TestWithParam<const char*> {};

// Ranges inside packed pages: nobody sees them any more, everything else is seen as before, whole pages are given back.
TEST_P(Operations, RemovedFromPages) {
  const Model model = reference::MakeModel(GetParam(), kTwoLayers);
  const int sink = model.config.spec.sink, page = model.config.spec.page;
  const std::pair<int, int> ranges[] = {{sink + 10, sink + 11},           {sink, sink + 2 * page},
                                        {sink + 5, sink + page + 30},     {sink + page, sink + 2 * page},
                                        {sink + 1, sink + 3 * page - 20}, {sink, sink + page + 1}};
  for (const auto& [begin, end] : ranges) {
    SCOPED_TRACE(testing::Message() << begin << " to " << end);
    auto cache = reference::MakeCache(model);
    Checker checker(model);
    const std::vector<Token> prompt = TokenRun(0, 0, 700);
    (void)RunStep(cache.get(), model, prompt);
    checker.Append(prompt);
    const CacheUsage before = cache->Usage();
    ASSERT_TRUE(cache->Fork(0, 1).ok());
    ASSERT_TRUE(cache->RemoveRange(0, begin, end).ok());
    checker.RemovePacked(0, begin, end);
    ASSERT_EQ(cache->Length(0), 700 - (end - begin));
    ASSERT_EQ(cache->LastPosition(0), 699);
    std::vector<int32_t> left = Range(0, begin);
    const std::vector<int32_t> behind = Range(end, 700);
    left.insert(left.end(), behind.begin(), behind.end());
    ASSERT_EQ(PositionsOf(*cache, 0), left);
    int32_t at = 700;
    for (const int n : {1, 2, 150, 90}) {
      const std::vector<Token> step = TokenRun(0, at, n, 1);
      const StepResult result = RunStep(cache.get(), model, step);
      checker.Append(step);
      ASSERT_LE(checker.Compare(step, result, 70).out, kTolerance) << "at " << at;
      at += n;
    }
    auto twin = reference::MakeCache(model);  // the fork is as it was
    (void)RunStep(twin.get(), model, prompt);
    std::vector<Token> next = TokenRun(1, 700, 3, 5), same = TokenRun(0, 700, 3, 5);
    ASSERT_TRUE(RunStep(cache.get(), model, next) == RunStep(twin.get(), model, same));
    cache->Keep(1);
    ASSERT_THAT(cache->Sequences(), ElementsAre(1));
    ASSERT_EQ(cache->Usage().tokens, 703);
    ASSERT_GE(cache->Usage().pages, before.pages);
    cache->Remove(1);
    ASSERT_EQ(cache->Usage().bytes_used, 0u);
  }
}

// What was taken back leaves no trace: every bit is as in a sequence that never had it.
TEST_P(Operations, DraftsTakenBackLeaveNoTrace) {
  Model model = reference::MakeModel(GetParam(), kTwoLayers);
  model.config.rollback = 12;
  for (const int prompt : {3, 33, 100, 121, 125, 131, 132, 133, 140, 191, 260, 330, 397}) {
    auto cache = reference::MakeCache(model), twin = reference::MakeCache(model);
    (void)RunStep(cache.get(), model, TokenRun(0, 0, prompt));
    (void)RunStep(twin.get(), model, TokenRun(0, 0, prompt));
    int32_t at = prompt;
    for (const int drafts : {1, 5, 12, 12, 3, 12, 8}) {
      const int accepted = drafts / 3;
      const std::vector<Token> right = TokenRun(0, at, 1 + accepted, 2);
      std::vector<Token> step = right;
      const std::vector<Token> wrong = TokenRun(0, at + 1 + accepted, drafts - accepted, 77);
      step.insert(step.end(), wrong.begin(), wrong.end());
      const StepResult drafted = RunStep(cache.get(), model, step);
      at += 1 + accepted;
      if (drafts % 2 == 0) {
        ASSERT_TRUE(cache->RemoveRange(0, at, -1).ok());
      } else {
        ASSERT_TRUE(cache->Truncate(0, at).ok());
      }
      const StepResult expected = RunStep(twin.get(), model, right);
      ASSERT_TRUE(reference::Slice(model, drafted, 0, right.size()) == expected) << prompt << " at " << at;
    }
    const std::vector<Token> rest = TokenRun(0, at, 140, 3);
    ASSERT_TRUE(RunStep(cache.get(), model, rest) == RunStep(twin.get(), model, rest)) << prompt;
    EXPECT_EQ(cache->Usage().bytes_used, twin->Usage().bytes_used);
    EXPECT_EQ(cache->Usage().tokens_packed, twin->Usage().tokens_packed);
  }
}

// A copy of a range is what is left of a fork when all else is removed; both go on alone.
TEST_P(Operations, CopiesOfRanges) {
  const Model model = reference::MakeModel(GetParam(), kTwoLayers);
  for (const auto& [begin, end] : {std::pair{0, 200}, {70, 390}, {-1, -1}, {150, -1}, {395, 396}}) {
    auto cache = reference::MakeCache(model), twin = reference::MakeCache(model);
    (void)RunStep(cache.get(), model, TokenRun(0, 0, 400));
    (void)RunStep(twin.get(), model, TokenRun(0, 0, 400));
    const size_t pages = cache->Usage().pages;
    ASSERT_TRUE(cache->Copy(0, 3, begin, end).ok());
    EXPECT_EQ(cache->Usage().pages, pages) << "shared";
    ASSERT_TRUE(end < 0 || twin->RemoveRange(0, end, -1).ok());
    ASSERT_TRUE(begin <= 0 || twin->RemoveRange(0, -1, begin).ok());
    ASSERT_EQ(PositionsOf(*cache, 3), PositionsOf(*twin, 0));
    std::vector<Token> next = TokenRun(3, 400, 100, 4), same = TokenRun(0, 400, 100, 4);
    ASSERT_TRUE(RunStep(cache.get(), model, next) == RunStep(twin.get(), model, same)) << begin << " to " << end;
    EXPECT_EQ(cache->Copy(0, 3, 0, 10).code(), StatusCode::kInvalidArgument) << "3 is not empty";
    ASSERT_TRUE(cache->Copy(0, 4, 900, 1000).ok());
    EXPECT_EQ(cache->Length(4), 0);
    ASSERT_TRUE(cache->RemoveRange(0, -1, -1).ok());
    EXPECT_THAT(cache->Sequences(), ElementsAre(3));
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Operations, ::testing::ValuesIn(kSpecs));

KeyRotation Rotation(int channels, bool interleaved, int first_channel) {
  KeyRotation rotation;
  rotation.frequency = RopeFrequencies({.channels = channels, .base = 500});
  rotation.interleaved = interleaved;
  rotation.first_channel = first_channel;
  return rotation;
}

// The context shift of servers: a part behind the first tokens goes, the rest closes up; again and again.
TEST(Shift, TurnsKeysAsTheListDoes) {
  for (const char* spec : {"f32", "f16", "bf16", "k8v8+mean=off+scale=off+sink=4+win=40",
                           "k6v4+mean=off+scale=off+rot=none+sink=0+win=0", "fp8+rot=h1+win=30", "nvfp4+sink=130"}) {
    const Model model = reference::MakeModel(spec, kTwoLayers, 2);
    auto cache = reference::MakeCache(model);
    TokenLists lists(model);
    int32_t at = 0;
    for (int round = 0; round < 4; ++round) {
      const std::vector<Token> step = TokenRun(0, at, round == 0 ? 500 : 150, static_cast<uint64_t>(round));
      ASSERT_LE(lists.AppendAndCompare(step, RunStep(cache.get(), model, step, 2)).out, kTolerance) << spec << round;
      at += static_cast<int32_t>(step.size());
      const KeyRotation rotation = round % 2 == 0 ? Rotation(32, false, 0) : Rotation(16, true, 6);
      ASSERT_TRUE(cache->RemoveRange(0, 30, 160).ok());
      lists.RemoveRange(0, 30, 160);
      ASSERT_TRUE(cache->Fork(0, 1).ok());  // keeps the pages that are about to change
      ASSERT_TRUE(cache->Shift(0, 160, -1, -130, {&rotation, 1}).ok());
      lists.Shift(0, 160, -1, -130, rotation);
      at -= 130;
      ASSERT_EQ(PositionsOf(*cache, 0), Range(0, at));
      ASSERT_EQ(cache->LastPosition(1), at + 129);
      cache->Remove(1);
    }
    const KeyRotation rotation = Rotation(32, true, 0);
    ASSERT_TRUE(cache->Shift(0, 0, -1, -50, {&rotation, 1}).ok()) << "positions below 0 go";
    lists.Shift(0, 0, -1, -50, rotation);
    ASSERT_TRUE(cache->Shift(0, 100, -1, 1000, {&rotation, 1}).ok());
    lists.Shift(0, 100, -1, 1000, rotation);
    ASSERT_EQ(PositionsOf(*cache, 0), lists.Positions(0));
    const std::vector<Token> step = TokenRun(0, cache->LastPosition(0) + 1, 60, 9);
    ASSERT_LE(lists.AppendAndCompare(step, RunStep(cache.get(), model, step, 2)).out, kTolerance) << spec;
  }
}

// Measured statistics and pages that are packed whole: within what 8 bits keep of an f32 list.
TEST(Shift, IsCloseUnderEveryCodec) {
  for (const char* spec : {"k8v8", "kivi-k8v8+page=64", "k8v8+mean=page", "q8_0+mean=page+sink=3", "int8+page=128"}) {
    const Model model = reference::MakeModel(spec, kTwoLayers), plain = reference::MakeModel("f32", kTwoLayers);
    auto cache = reference::MakeCache(model);
    TokenLists lists(plain);
    const std::vector<Token> prompt = TokenRun(0, 0, 600);
    (void)lists.AppendAndCompare(prompt, RunStep(cache.get(), model, prompt));
    const KeyRotation rotation = Rotation(32, false, 0);
    ASSERT_TRUE(cache->RemoveRange(0, 20, 100).ok());
    lists.RemoveRange(0, 20, 100);
    ASSERT_TRUE(cache->Shift(0, 100, -1, -80, {&rotation, 1}).ok());
    lists.Shift(0, 100, -1, -80, rotation);
    const std::vector<Token> step = TokenRun(0, 520, 100);
    EXPECT_LE(lists.AppendAndCompare(step, RunStep(cache.get(), model, step)).out, 0.06) << spec;
  }
}

TEST(Shift, RefusesWhatCannotBe) {
  Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  (void)RunStep(cache.get(), model, TokenRun(0, 0, 300));
  const KeyRotation rotation = Rotation(32, false, 0);
  const auto shift = [&](int64_t begin, int64_t end, int64_t delta) {
    return cache->Shift(0, begin, end, delta, {&rotation, 1});
  };
  EXPECT_EQ(shift(100, 200, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(100, -1, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(100, -1, 0x7fffffff).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(shift(100, 200, 1).message(), HasSubstr("positions 100 to 199"));
  EXPECT_EQ(PositionsOf(*cache, 0), Range(0, 300));
  const KeyRotation wide = Rotation(32, false, 8);
  EXPECT_THAT(cache->Shift(0, 0, -1, 5, {&wide, 1}).message(), HasSubstr("channels 8 to 40"));
  const std::vector<KeyRotation> three(3, rotation);
  EXPECT_EQ(cache->Shift(0, 0, -1, 5, three).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cache->Shift(0, 0, -1, 5, {}).ok());
  EXPECT_EQ(PositionsOf(*cache, 0), Range(5, 305));
  EXPECT_TRUE(cache->Shift(0, 700, -1, -600, {}).ok()) << "nothing is there";
  EXPECT_TRUE(cache->Shift(8, 0, -1, 4, {}).ok());
}

// Keys whose RoPE was turned on by hand: llama.cpp's formula, plain, scaled and YaRN.
TEST(Rope, Frequencies) {
  const std::vector<double> plain = RopeFrequencies({.channels = 8});
  ASSERT_EQ(plain.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(plain[i], std::pow(10000.0, -0.25 * static_cast<double>(i)), 1e-12);
  const std::vector<double> scaled = RopeFrequencies({.channels = 8, .scale = 0.25, .factors = {1, 2, 4, 8}});
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(scaled[i], plain[i] / 4 / (1 << i), 1e-12);
  const std::vector<double> yarn =
      RopeFrequencies({.channels = 128, .base = 10000, .scale = 0.25, .extrapolation = 1, .original_context = 4096});
  const std::vector<double> full = RopeFrequencies({.channels = 128});
  EXPECT_NEAR(yarn[0], full[0], 1e-12);
  EXPECT_NEAR(yarn[63], full[63] / 4, 1e-12);
  // Corrections from floor(20.94) = 20 to ceil(45.03) = 46 of 64 pairs (Peng et al. 2023).
  EXPECT_NEAR(yarn[20], full[20], 1e-12);
  EXPECT_NEAR(yarn[33], full[33] * (0.5 + 0.5 / 4), 1e-9);
  EXPECT_NEAR(yarn[46], full[46] / 4, 1e-12);
}

// Pages behind the window go, layer by layer, and what is left is the formula.
TEST(Windows, GiveTheirPagesBack) {
  for (const char* spec : {"k4v4", "k4v4+sink=0+win=0", "k8v3+mean=page", "kivi-k4v4+page=64", "f16"}) {
    Model model = reference::MakeModel(spec, {{2, 1, 32, 32}, {2, 1, 32, 32}, {2, 1, 64, 64}});
    model.config.windows = {300, 0, 90};
    model.config.rollback = 5;
    auto cache = reference::MakeCache(model);
    Checker checker(model);
    for (const std::vector<Token>& step :
         {TokenRun(0, 0, 1000), TokenRun(0, 1000, 1), TokenRun(0, 1001, 1499), TokenRun(0, 2500, 5500)}) {
      const StepResult result = RunStep(cache.get(), model, step);
      checker.Append(step);
      ASSERT_LE(checker.Compare(step, result, 499).out, kTolerance) << spec << " " << step[0].pos;
    }
    const CacheUsage usage = cache->Usage();
    const double formula = static_cast<double>(FormulaBytes(model.config, 8000));
    EXPECT_NEAR(static_cast<double>(usage.bytes_used), formula, 0.01 * formula) << spec;
    Model full = model;
    full.config.windows.clear();
    EXPECT_LT(formula, 0.8 * static_cast<double>(FormulaBytes(full.config, 8000))) << spec;
    EXPECT_GT(cache->FirstPosition(0), 7700);
    EXPECT_LE(cache->FirstPosition(0), 8000 - 90);
    // Drafts come back as always; what would need pages that are gone is refused and changes nothing.
    ASSERT_TRUE(cache->Truncate(0, 7995).ok());
    const Status deep = cache->Truncate(0, 7000);
    EXPECT_EQ(deep.code(), StatusCode::kUnsupported);
    EXPECT_THAT(deep.message(), HasSubstr("has given back"));
    EXPECT_EQ(cache->RemoveRange(0, 7000, -1).code(), StatusCode::kUnsupported);
    EXPECT_EQ(cache->Length(0), 7995);
    checker.Truncate(0, 7995);
    const std::vector<Token> step = TokenRun(0, 7995, 40, 1);
    const StepResult result = RunStep(cache.get(), model, step);
    checker.Append(step);
    ASSERT_LE(checker.Compare(step, result, 13).out, kTolerance) << spec;
    cache->Remove(0);
    EXPECT_EQ(cache->Usage().bytes_used, 0u);
  }
}

// A fork made before a long step still has what the step's sequence gives back.
TEST(Windows, AForkKeepsItsPages) {
  Model model = reference::MakeModel("k4v4", {{2, 1, 32, 32}, {2, 1, 32, 32}});
  model.config.windows = {100, 0};
  auto cache = reference::MakeCache(model), twin = reference::MakeCache(model);
  (void)RunStep(cache.get(), model, TokenRun(0, 0, 500));
  (void)RunStep(twin.get(), model, TokenRun(0, 0, 500));
  ASSERT_TRUE(cache->Fork(0, 1).ok());
  (void)RunStep(cache.get(), model, TokenRun(0, 500, 800));
  EXPECT_EQ(cache->Truncate(0, 500).code(), StatusCode::kUnsupported);
  cache->Remove(0);
  ASSERT_TRUE(cache->Fork(1, 0).ok());
  const std::vector<Token> next = TokenRun(0, 500, 30, 3);
  EXPECT_TRUE(RunStep(cache.get(), model, next) == RunStep(twin.get(), model, next));
  // Removing in the middle needs nothing of what is gone; shifting what is kept into the window does.
  (void)RunStep(cache.get(), model, TokenRun(0, 530, 500, 3));
  ASSERT_TRUE(cache->RemoveRange(0, 100, 1000).ok());
  EXPECT_EQ(cache->Shift(0, 1000, -1, -900, {}).code(), StatusCode::kUnsupported);
  EXPECT_EQ(cache->LastPosition(0), 1029);
  model.config.windows = {100};
  EXPECT_EQ(KvCache::Create(model.config).status().code(), StatusCode::kInvalidArgument);
  model.config.windows = {100, -1};
  EXPECT_THAT(KvCache::Create(model.config).status().message(), HasSubstr("layer 1 is -1"));
  model.config.windows.clear();
  model.config.rollback = -3;
  EXPECT_THAT(KvCache::Create(model.config).status().message(), HasSubstr("rollback is -3"));
}

}  // namespace
}  // namespace tersekv
