// SPDX-License-Identifier: Apache-2.0
// Steps that fail, are aborted or are wrong leave no trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::StepResult;
using reference::Token;
using reference::TokenRun;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<LayerShape> kTwoLayers = {{4, 2, 32, 32}, {4, 2, 32, 64}};
const char* const kSpecs[] = {"k4v4", "k3v5+sink=7+win=33", "k4v4+sink=0+win=0", "f16"};

// One layer of the running step with `bad` put into channel 5 of a token's KV head.
void WriteBadRow(KvCache* cache, const Model& model, const std::vector<Token>& tokens, int layer, Kv side, size_t token,
                 int head, float bad) {
  for (int l = 0; l < 2; ++l) {
    const LayerShape& shape = model.config.layers[static_cast<size_t>(l)];
    for (const Kv s : {Kv::kK, Kv::kV}) {
      std::vector<float> rows;
      for (const Token& t : tokens) {
        const std::vector<float> row = s == Kv::kK ? model.K(l, t.content) : model.V(l, t.content);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      const int d = s == Kv::kK ? shape.head_dim_k : shape.head_dim_v, width = shape.kv_heads * d;
      if (l == layer && s == side) rows[token * static_cast<size_t>(width) + static_cast<size_t>(head * d + 5)] = bad;
      cache->WriteRows(l, s, rows.data(), width * 4, 0, 1);
    }
  }
}

TEST(Step, AbortedStepsLeaveNoTrace) {
  for (const char* spec : kSpecs) {
    const Model model = reference::MakeModel(spec, kTwoLayers);
    for (const int begin : {0, 3, 100, 131, 140, 300}) {
      SCOPED_TRACE(std::string(spec) + " at " + std::to_string(begin));
      auto cache = reference::MakeCache(model), twin = reference::MakeCache(model);
      for (KvCache* c : {cache.get(), twin.get()}) {
        if (begin > 0) (void)reference::RunStep(c, model, TokenRun(0, 0, begin));
        if (begin <= 200) continue;
        ASSERT_TRUE(c->Fork(0, 3).ok());  // the aborted step copies shared pages
      }
      for (const int n : {1, 40, 200}) {
        for (const bool written : {false, true}) {
          std::vector<Token> lost = TokenRun(0, begin, n, 9);
          const std::vector<Token> other = TokenRun(1, 0, 150, 9);  // a sequence that is new
          lost.insert(lost.end(), other.begin(), other.end());
          ASSERT_TRUE(cache->BeginStep(reference::StepTokens(lost)).ok());
          if (written) reference::WriteAll(cache.get(), model, lost);
          cache->AbortStep();
          ASSERT_EQ(cache->Length(0), begin);
          ASSERT_EQ(cache->Length(1), 0);
        }
      }
      EXPECT_EQ(cache->Usage().raw_rows, twin->Usage().raw_rows);
      EXPECT_EQ(cache->Usage().stats, twin->Usage().stats);
      EXPECT_EQ(cache->Usage().tokens_packed, twin->Usage().tokens_packed);
      int32_t at = begin;
      for (const int n : {1, 35, 160}) {
        EXPECT_TRUE(reference::RunStep(cache.get(), model, TokenRun(0, at, n)) ==
                    reference::RunStep(twin.get(), model, TokenRun(0, at, n)));
        at += n;
      }
    }
  }
}

TEST(Step, AbortWithoutAStepDoesNothing) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  cache->AbortStep();
  (void)reference::RunStep(cache.get(), model, TokenRun(0, 0, 10));
  cache->AbortStep();
  EXPECT_EQ(cache->Length(0), 10);
}

TEST(Step, ValuesThatCannotBeStoredFailTheStep) {
  for (const char* spec : {"k4v4", "k4v4+sink=0+win=0+mean=off+scale=off", "f16", "bf16", "f32"}) {
    const Model model = reference::MakeModel(spec, kTwoLayers);
    const bool f32 = std::string(spec) == "f32", bf16 = std::string(spec) == "bf16";
    auto cache = reference::MakeCache(model), twin = reference::MakeCache(model);
    int32_t at = 0;
    for (const int n : {3, 200, 1, 50}) {
      for (const float bad : {std::nanf(""), kInfinity, -kInfinity, bf16 ? -3.4e38f : 65520.0f, -1e6f}) {
        if (std::isfinite(bad) && (f32 || (bf16 && bad == -1e6f))) continue;  // it can
        for (const Kv side : {Kv::kK, Kv::kV}) {
          const int layer = side == Kv::kK ? 1 : 0, head = layer;
          const size_t token = static_cast<size_t>(n) / 2;
          const std::vector<Token> step = TokenRun(0, at, n, 3);
          ASSERT_TRUE(cache->BeginStep(reference::StepTokens(step)).ok());
          WriteBadRow(cache.get(), model, step, layer, side, token, head, bad);
          const Status status = cache->EndStep();
          const std::string what = std::string(spec) + ", " + std::to_string(bad);
          ASSERT_EQ(status.code(), StatusCode::kDataLoss) << what;
          EXPECT_THAT(status.message(), HasSubstr(side == Kv::kK ? "K of token" : "V of token")) << what;
          EXPECT_THAT(status.message(), HasSubstr("token " + std::to_string(token) + " "));
          EXPECT_THAT(status.message(), HasSubstr("layer " + std::to_string(layer)));
          EXPECT_THAT(status.message(), HasSubstr("head " + std::to_string(head)));
          ASSERT_EQ(cache->Length(0), at) << what;
        }
      }
      ASSERT_TRUE(reference::RunStep(cache.get(), model, TokenRun(0, at, n)) ==
                  reference::RunStep(twin.get(), model, TokenRun(0, at, n)))
          << spec << " at " << at;
      at += n;
    }
  }
}

TEST(Step, LargestF16ValueCanBeStored) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  const std::vector<Token> step = TokenRun(0, 0, 300);
  for (const float v : {65504.0f, 65519.0f, 1e-30f}) {  // the second rounds to the first
    ASSERT_TRUE(cache->BeginStep(reference::StepTokens(step)).ok());
    WriteBadRow(cache.get(), model, step, 0, Kv::kK, 20, 0, v);
    EXPECT_TRUE(cache->EndStep().ok()) << v;
    cache->Remove(0);
  }
}

TEST(Step, EveryLayerSideAndHeadMustBeWritten) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers, 2);
  auto cache = reference::MakeCache(model);
  (void)reference::RunStep(cache.get(), model, TokenRun(0, 0, 20));
  const std::vector<float> rows(128, 1.0f);
  for (int missing = 0; missing < 5; ++missing) {  // (layer, side), and one worker of two
    ASSERT_TRUE(cache->BeginStep(reference::StepTokens(TokenRun(0, 20, 1))).ok());
    for (int l = 0; l < 2; ++l) {
      for (const Kv side : {Kv::kK, Kv::kV}) {
        if (missing == 2 * l + static_cast<int>(side)) continue;
        cache->WriteRows(l, side, rows.data(), 512, 0, 2);
        if (missing < 4 || l == 0) cache->WriteRows(l, side, rows.data(), 512, 1, 2);
      }
    }
    EXPECT_EQ(cache->EndStep().code(), StatusCode::kInternal) << missing;
    EXPECT_EQ(cache->Length(0), 20);
  }
  (void)reference::RunStep(cache.get(), model, TokenRun(0, 20, 1));
  EXPECT_EQ(cache->Length(0), 21);
}

TEST(Step, WrongTokensAreRefused) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  (void)reference::RunStep(cache.get(), model, {{2, 7, 0}, {2, 9, 1}});
  const auto code = [&](const std::vector<StepToken>& tokens) {
    const Status status = cache->BeginStep(tokens);
    if (status.ok()) cache->AbortStep();
    return status.code();
  };
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{-1, 0}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, -1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{2, 9}}), StatusCode::kInvalidArgument) << "position 9 is there";
  EXPECT_EQ(code({{2, 3}}), StatusCode::kInvalidArgument) << "before the newest";
  EXPECT_EQ(code({{2, 10}, {2, 10}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 5}, {2, 11}, {0, 4}}), StatusCode::kInvalidArgument) << "descends within the step";
  EXPECT_EQ(code({{0, 5}, {2, 10}, {0, 6}}), StatusCode::kOk) << "gaps and interleaving are fine";
  EXPECT_THAT(cache->BeginStep(std::vector<StepToken>{{2, 9}}).message(), HasSubstr("position 9"));
  EXPECT_EQ(cache->Length(2), 2);
  EXPECT_EQ(cache->LastPosition(2), 9);
  EXPECT_EQ(cache->LastPosition(0), -1);
  ASSERT_TRUE(cache->BeginStep(std::vector<StepToken>{{2, 10}}).ok());
  EXPECT_EQ(cache->BeginStep(std::vector<StepToken>{{3, 0}}).code(), StatusCode::kInternal) << "one step at a time";
  cache->AbortStep();
  EXPECT_EQ(cache->EndStep().code(), StatusCode::kInternal) << "no step is running";
  EXPECT_EQ(cache->Fork(2, -4).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(cache->Fork(2, 3).ok());
  EXPECT_EQ(cache->Fork(2, 3).code(), StatusCode::kInvalidArgument) << "3 is not empty";
  EXPECT_TRUE(cache->Fork(50, 51).ok()) << "an unknown id is an empty sequence";
  EXPECT_EQ(cache->Length(51), 0);
}

TEST(Create, RefusesShapesByName) {
  const auto code = [](const std::string& spec, std::vector<LayerShape> layers, int workers) {
    CacheConfig config;
    config.spec = ParseSpec(spec).value();
    config.layers = std::move(layers);
    config.max_workers = workers;
    return KvCache::Create(config).status().code();
  };
  EXPECT_EQ(code("k4v4", {{8, 2, 64, 64}}, 1), StatusCode::kOk);
  EXPECT_EQ(code("k4v4", {}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("k4v4", {{8, 3, 64, 64}}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("k4v4", {{2, 4, 64, 64}}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("k4v4", {{8, 0, 64, 64}}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("k4v4", {{8, 2, 64, 0}}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("k4v4", {{8, 2, 64, 64}}, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("k4v4", {{8, 2, 64, 64}, {8, 2, 72, 64}}, 1), StatusCode::kUnsupported);
  EXPECT_EQ(code("k4v4", {{8, 2, 64, 16}}, 1), StatusCode::kUnsupported);
  EXPECT_EQ(code("f16", {{8, 2, 80, 8}}, 1), StatusCode::kOk);
  EXPECT_EQ(code("auto", {{8, 2, 64, 64}}, 1), StatusCode::kUnsupported);
  EXPECT_EQ(code("kivi-k4v4", {{8, 2, 64, 64}}, 1), StatusCode::kOk);
  EXPECT_EQ(code("k4v4+mean=profile", {{8, 2, 64, 64}}, 1), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tersekv
