// SPDX-License-Identifier: Apache-2.0
// The drift check on a cache without an engine: nothing is found where the rows stay what they were, and a change of
// their mean is.
#include "hosts/llama/preload/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace tersekv::llama::preload {
namespace {

using ::testing::HasSubstr;

constexpr int kHeads = 4, kKvHeads = 2, kDim = 64, kWidth = kKvHeads * kDim;

struct Steps {
  explicit Steps(const char* spec, int64_t period = 1, double limit = 0)
      : cache(Make(spec)), probe(cache.get(), period, limit) {}
  static std::unique_ptr<KvCache> Make(const char* spec) {
    CacheConfig config;
    config.spec = ParseSpec(spec).value();
    config.layers = {{kHeads, kKvHeads, kDim, kDim}, {kHeads, kKvHeads, kDim, kDim}};
    return KvCache::Create(config).value();
  }
  // One pass of tokens of these sequences; offset: of one channel in eight of K.
  std::string Step(const std::vector<int32_t>& seqs, float offset = 0) {
    std::vector<StepToken> tokens;
    for (const int32_t seq : seqs) tokens.push_back({seq, next[static_cast<size_t>(seq)]++});
    EXPECT_TRUE(probe.BeginStep(tokens).ok());
    EXPECT_TRUE(cache->BeginStep(tokens).ok());
    std::normal_distribution<float> normal;
    for (int layer = 0; layer < 2; ++layer) {
      for (const Kv side : {Kv::kK, Kv::kV}) {
        std::vector<float> rows(tokens.size() * kWidth);
        for (size_t i = 0; i < rows.size(); ++i) {
          rows[i] = normal(random) + (side == Kv::kK && i % 8 == 0 ? offset : 0);
        }
        probe.WriteRows(layer, side, rows.data(), kWidth * sizeof(float), 0, 1);
        cache->WriteRows(layer, side, rows.data(), kWidth * sizeof(float), 0, 1);
      }
      std::vector<float> q(tokens.size() * kHeads * kDim);
      for (float& x : q) x = normal(random);
      Queries queries;
      queries.data = q.data();
      queries.heads = kHeads;
      queries.head_stride = kDim * sizeof(float);
      queries.token_stride = kHeads * queries.head_stride;
      AttentionParams params;
      params.scale = 0.125f;
      probe.Attend(layer, params, queries, 0, 1);
    }
    EXPECT_TRUE(cache->EndStep().ok());
    return probe.Ended();
  }

  std::unique_ptr<KvCache> cache;
  DriftProbe probe;
  std::vector<int32_t> next = std::vector<int32_t>(4);
  std::mt19937 random{std::random_device{}()};
};

TEST(Drift, WhatStaysAsItWasIsWithinTheLimit) {
  double before = 1;
  for (const char* spec : {"k2v2", "k3v3", "k4v4", "kivi-k4v4", "k8v8"}) {
    Steps run(spec);
    for (int i = 0; i < 3000; ++i) ASSERT_EQ(run.Step({0}), "") << spec;
    EXPECT_GE(run.probe.report().checks, 5) << spec;
    EXPECT_EQ(run.probe.report().warnings, 0) << spec;
    EXPECT_GT(run.probe.report().last, 0) << spec;
    if (spec[0] != 'k' || spec[1] == 'i') continue;
    EXPECT_LT(run.probe.report().largest, before) << spec;  // more bits, less error
    before = run.probe.report().largest;
  }
}

TEST(Drift, AChangeOfTheMeanIsFoundAndSaid) {
  Steps run("k4v4");
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(run.Step({0}), "");
  std::string said;
  for (int i = 0; i < 2000 && said.empty(); ++i) said = run.Step({0}, 40);
  EXPECT_THAT(said, HasSubstr("drift: attention over 16 packed tokens of sequence 0"));
  EXPECT_GT(run.probe.report().last, DriftProbe::DefaultLimit(4.25));
  EXPECT_EQ(run.probe.report().warnings, 1);
}

TEST(Drift, SequencesThatAreEditedAreDropped) {
  Steps run("k4v4", 1);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 150; ++i) run.Step({0, 1});
    for (const int32_t seq : {0, 1}) {
      run.cache->Remove(seq);
      run.probe.Edited(seq);
      run.next[static_cast<size_t>(seq)] = 0;
    }
  }
  EXPECT_EQ(run.probe.report().checks, 0);  // no token was behind the window long enough
  for (int i = 0; i < 300; ++i) run.Step({0, 1, 0, 2});
  EXPECT_GE(run.probe.report().checks, 1);
  EXPECT_LT(run.probe.report().largest, DriftProbe::DefaultLimit(4.25));  // rows were not mixed up
}

TEST(Drift, OffAndRawSpecsDoNothing) {
  for (Steps* run : {new Steps("k4v4", 0), new Steps("f16", 1)}) {
    const std::unique_ptr<Steps> owned(run);
    EXPECT_FALSE(run->probe.active());
    for (int i = 0; i < 500; ++i) ASSERT_EQ(run->Step({0}), "");
    EXPECT_EQ(run->probe.report().checks, 0);
  }
}

}  // namespace
}  // namespace tersekv::llama::preload
