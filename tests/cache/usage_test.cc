// SPDX-License-Identifier: Apache-2.0
// Real bytes: what Usage() says is what the formula says and what the allocator gave; a budget is kept to the token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/base/aligned.h"
#include "tersekv/cache.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TERSEKV_TEST_OWN_ALLOCATOR 1  // mallinfo2 knows nothing of it
#endif

namespace tersekv {
namespace {

using reference::Model;
using reference::Token;
using reference::TokenRun;
using ::testing::HasSubstr;

// SmolLM2-135M.
Model SmolLm2(const std::string& spec) {
  return reference::MakeModel(spec, std::vector<LayerShape>(30, LayerShape{9, 3, 64, 64}));
}

// A step with the same rows in every layer: quick, for tests that only count.
void FillStep(KvCache* cache, const std::vector<Token>& tokens) {
  ASSERT_TRUE(cache->BeginStep(reference::StepTokens(tokens)).ok());
  const std::vector<LayerShape>& layers = cache->config().layers;
  std::vector<float> rows;
  for (size_t i = 0; i < 1024; ++i) rows.push_back(static_cast<float>(std::sin(static_cast<double>(i * i))));
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      cache->WriteRows(static_cast<int>(l), side, rows.data(), 0, 0, 1);  // row stride 0: one row for all tokens
    }
  }
  ASSERT_TRUE(cache->EndStep().ok());
}

void Fill(KvCache* cache, int32_t seq, int32_t begin, int32_t end, int32_t step) {
  for (int32_t at = begin; at < end; at += step) FillStep(cache, TokenRun(seq, at, std::min(step, end - at)));
}

size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd + HugeBytes();
}

void ExpectConsistent(const CacheUsage& usage) {
  EXPECT_EQ(usage.pages + usage.raw_rows + usage.stats + usage.tables, usage.bytes_used);
  EXPECT_GE(usage.bytes_reserved, usage.bytes_used);
}

void ExpectSame(const CacheUsage& a, const CacheUsage& b) {
  EXPECT_EQ(a.pages, b.pages);
  EXPECT_EQ(a.raw_rows, b.raw_rows);
  EXPECT_EQ(a.stats, b.stats);
  EXPECT_EQ(a.tables, b.tables);
  EXPECT_EQ(a.bytes_reserved, b.bytes_reserved);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.tokens_packed, b.tokens_packed);
}

class Bytes : public ::testing::TestWithParam<const char*> {};

TEST_P(Bytes, UsedAreTheFormulaAndWereAllocated) {
  const Model model = SmolLm2(GetParam());
  const size_t before = AllocatedBytes();
  auto cache = reference::MakeCache(model);
  const size_t empty = AllocatedBytes() - before;  // rotations and what workers need
  Fill(cache.get(), 0, 0, 8192, 512);
  const size_t allocated = AllocatedBytes() - before;
  const CacheUsage usage = cache->Usage();
  ExpectConsistent(usage);
  const double formula = static_cast<double>(FormulaBytes(model.config, 8192));
  EXPECT_NEAR(static_cast<double>(usage.bytes_used), formula, 0.01 * formula);
  // One sequence that only grew leaves no page idle but those of its last slab, and 1/32 of the slabs beside them.
  EXPECT_LE(usage.bytes_reserved, usage.bytes_used + usage.bytes_used / 32 + 8 * kHugePageBytes);
  EXPECT_EQ(usage.tokens, 8192);
  EXPECT_EQ(usage.tokens_packed, 8192 - model.config.spec.sink - model.config.spec.win);
  EXPECT_EQ(usage.bytes_f16, size_t{8192} * 30 * 3 * (64 + 64) * 2);
  EXPECT_DOUBLE_EQ(usage.bits_effective,
                   static_cast<double>(usage.bytes_used) * 16 / static_cast<double>(usage.bytes_f16));
  EXPECT_GE(usage.bits_effective, BitsSpec(model.config.spec, 64, 64));
  EXPECT_GT(usage.scratch, 0u);
#ifndef TERSEKV_TEST_OWN_ALLOCATOR
  EXPECT_GE(allocated, usage.bytes_used);
  // malloc's headers and 64-byte lines: below 1%; states of the plan and tables of the step: some KiB.
  EXPECT_LE(allocated, usage.bytes_reserved * 101 / 100 + usage.scratch + empty + (256u << 10));
#endif
  (void)empty, (void)allocated;
}

INSTANTIATE_TEST_SUITE_P(Specs, Bytes, ::testing::Values("k4v4", "k8v8", "k2v2", "f16"));

// A packed cache has nowhere a copy in 16 bits.
TEST(Usage, PackedIsSmallerByTheBitsOfTheSpec) {
  const Model k4 = SmolLm2("k4v4"), f16 = SmolLm2("f16");
  EXPECT_DOUBLE_EQ(BitsSpec(k4.config.spec, 64, 64), 4.25);
  const double ratio =
      static_cast<double>(FormulaBytes(f16.config, 8192)) / static_cast<double>(FormulaBytes(k4.config, 8192));
  EXPECT_GT(ratio, 3.5);
  EXPECT_LT(ratio, 16 / 4.25);
}

TEST(Usage, ScratchIsNotHistory) {
  const Model model = reference::MakeModel("k4v4", {{4, 2, 64, 64}});
  auto at_once = reference::MakeCache(model), singly = reference::MakeCache(model);
  Fill(at_once.get(), 0, 0, 1000, 1000);
  Fill(singly.get(), 0, 0, 1000, 1);
  ExpectSame(at_once->Usage(), singly->Usage());
  EXPECT_GE(at_once->Usage().scratch, singly->Usage().scratch + 900 * 2 * 2 * 128 * sizeof(uint16_t) / 2);
  ExpectConsistent(singly->Usage());
}

TEST(Usage, EmptyCacheUsesNothing) {
  auto cache = reference::MakeCache(SmolLm2("k4v4"));
  ExpectSame(cache->Usage(), CacheUsage());
  EXPECT_EQ(cache->TokensThatFit(0), INT64_MAX) << "no budget";
}

class Budget : public ::testing::TestWithParam<const char*> {
 protected:
  Model SmallModel(size_t budget) {
    Model model = reference::MakeModel(GetParam(), {{4, 2, 64, 32}, {2, 1, 32, 64}, {4, 2, 64, 32}});
    model.config.byte_budget = budget;
    return model;
  }
};

TEST_P(Budget, TakesExactlyTheTokensThatItSaysFit) {
  for (const size_t budget : {400u << 10, 1000u << 10, (1000u << 10) + 12345u}) {
    const Model model = SmallModel(budget);
    auto cache = reference::MakeCache(model);
    int32_t length = 0;
    Status status;
    while ((status = cache->BeginStep(reference::StepTokens(TokenRun(0, length, 70)))).ok()) {
      cache->AbortStep();
      const int64_t fit = cache->TokensThatFit(0);
      EXPECT_GE(fit, 70);
      FillStep(cache.get(), TokenRun(0, length, 70));
      length += 70;
      ExpectConsistent(cache->Usage());
      ASSERT_LE(cache->Usage().bytes_reserved, budget);
      ASSERT_LT(length, 1 << 20);
    }
    ASSERT_GT(length, 200);
    ASSERT_EQ(status.code(), StatusCode::kOutOfBudget);
    const int32_t fit = static_cast<int32_t>(cache->TokensThatFit(0));
    ASSERT_LT(fit, 70);
    EXPECT_THAT(status.message(), HasSubstr(" " + std::to_string(fit) + " more fit in sequence 0"));
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(budget)));
    EXPECT_EQ(cache->BeginStep(reference::StepTokens(TokenRun(0, length, fit + 1))).code(), StatusCode::kOutOfBudget);
    if (fit > 0) FillStep(cache.get(), TokenRun(0, length, fit));
    EXPECT_EQ(cache->Length(0), length + fit);
    EXPECT_EQ(cache->TokensThatFit(0), 0);
    EXPECT_EQ(cache->BeginStep(reference::StepTokens(TokenRun(0, length + fit, 1))).code(), StatusCode::kOutOfBudget);
    EXPECT_LE(cache->Usage().bytes_reserved, budget);
  }
}

TEST(Statistics, AreRefusedByABudgetTheyDoNotFit) {
  Model model = reference::MakeModel("k4v4", {{4, 2, 64, 64}});
  const std::vector<float> ones(128, 1.0f);
  model.config.statistics = {{ones, ones, ones, ones}};
  const size_t bytes = reference::MakeCache(model)->Usage().bytes_reserved;
  EXPECT_GE(bytes, 6 * 128 * sizeof(float));
  model.config.byte_budget = bytes;
  EXPECT_EQ(reference::MakeCache(model)->TokensThatFit(0), 0);
  model.config.byte_budget = bytes - 1;
  const Status status = KvCache::Create(model.config).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(bytes)));
}

TEST(Statistics, SharedScalesNeedVariances) {
  Model model = reference::MakeModel("fp8-head", {{4, 2, 64, 64}});
  const std::vector<float> ones(128, 1.0f);
  model.config.statistics = {{ones, ones, ones, ones, ones, {}}};
  const Status status = KvCache::Create(model.config).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("have 128 of K and 0 of V; they must have 128 and 128"));
  model.config.statistics[0].v_variance = std::vector<float>(128, -1.0f);
  EXPECT_THAT(KvCache::Create(model.config).status().message(), HasSubstr("hold -1"));
}

TEST_P(Budget, AFailedBeginChangesNothing) {
  const Model model = SmallModel(600 << 10), free = SmallModel(0);
  auto cache = reference::MakeCache(model), twin = reference::MakeCache(free);
  (void)reference::RunStep(cache.get(), model, TokenRun(0, 0, 150));
  (void)reference::RunStep(twin.get(), free, TokenRun(0, 0, 150));
  const CacheUsage before = cache->Usage();
  std::vector<Token> tokens = TokenRun(0, 150, 2);
  const std::vector<Token> more = TokenRun(1, 0, 9000);
  tokens.insert(tokens.end(), more.begin(), more.end());
  ASSERT_EQ(cache->BeginStep(reference::StepTokens(tokens)).code(), StatusCode::kOutOfBudget);
  ExpectSame(cache->Usage(), before);
  EXPECT_EQ(cache->Usage().scratch, before.scratch);
  EXPECT_EQ(cache->Length(0), 150);
  EXPECT_EQ(cache->Length(1), 0);
  EXPECT_EQ(cache->EndStep().code(), StatusCode::kInternal) << "no step is running";
  EXPECT_TRUE(reference::RunStep(cache.get(), model, TokenRun(0, 150, 30)) ==
              reference::RunStep(twin.get(), free, TokenRun(0, 150, 30)));
}

// Truncations, forks and removals under a tight budget: refused or done, never over it.
TEST_P(Budget, IsKeptThroughSequenceOperations) {
  const size_t budget = 400 << 10;
  const Model model = SmallModel(budget);
  auto cache = reference::MakeCache(model);
  reference::Random random(6);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    const int32_t seq = static_cast<int32_t>(random.Below(3));
    const int32_t length = static_cast<int32_t>(cache->Length(seq));
    switch (random.Below(5)) {
      case 0:
        ASSERT_TRUE(cache->Truncate(seq, static_cast<int64_t>(random.Below(static_cast<size_t>(length) + 1))).ok());
        break;
      case 1:
        if (cache->Length(3) == 0 && !cache->Fork(seq, 3).ok()) ++refused;
        break;
      case 2:
        if (random.Below(4) == 0) cache->Remove(3);
        break;
      default: {
        const std::vector<Token> step = TokenRun(seq, length, 1 + static_cast<int>(random.Below(300)));
        const int64_t fit = cache->TokensThatFit(seq);
        const Status status = cache->BeginStep(reference::StepTokens(step));
        ASSERT_EQ(status.ok(), fit >= static_cast<int64_t>(step.size())) << status.ToString();
        if (!status.ok()) {
          ++refused;
          break;
        }
        cache->AbortStep();
        FillStep(cache.get(), step);
      }
    }
    ExpectConsistent(cache->Usage());
    ASSERT_LE(cache->Usage().bytes_reserved, budget);
  }
  EXPECT_GT(refused, 10);
  for (int32_t seq = 0; seq < 4; ++seq) cache->Remove(seq);
  EXPECT_EQ(cache->Usage().bytes_used, 0u);
}

INSTANTIATE_TEST_SUITE_P(Specs, Budget, ::testing::Values("k4v4", "k2v3+sink=7+win=33", "k8v8+sink=0+win=0", "f16"));

}  // namespace
}  // namespace tersekv
