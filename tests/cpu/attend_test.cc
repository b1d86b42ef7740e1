// SPDX-License-Identifier: Apache-2.0
// Attention from packed bytes against the contract in double precision: every spec, shape and feature, on mixed steps
// of several sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "src/codec/record_list.h"
#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/checker.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Checker;
using reference::Errors;
using reference::Model;
using reference::Random;
using reference::StepResult;
using reference::Token;

// Bounds of docs/numerics.md, of max |o| of a (query, head).
struct Bounds {
  double out, lse;
};
Bounds BoundsOf(Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kFast) return {5e-2, 5e-2};
  return arithmetic == Arithmetic::kExact ? Bounds{2e-5, 5e-6} : Bounds{5e-4, 5e-4};
}
constexpr Arithmetic kArithmetics[] = {Arithmetic::kInt16, Arithmetic::kExact, Arithmetic::kFast};

const char* const kSpecs[] = {"f32",
                              "f16",
                              "bf16",
                              "f16+page=128",
                              "k2v2",
                              "k3v3",
                              "k4v4",
                              "k5v5",
                              "k6v6",
                              "k7v7",
                              "k8v8",
                              "k4v3",
                              "k8v4",
                              "k4v4+rot=none",
                              "k4v4+rot=haar",
                              "k4v4+mean=off+scale=off",
                              "k3v4+scale=off",
                              "k5v2+sink=0+win=0",
                              "k4v4+sink=7+win=33",
                              "k6v4+win=200",
                              "k4v4+page=128",
                              "k2v8+mean=off+scale=off+sink=0+win=0+page=128",
                              "int8",
                              "fp8",
                              "fp8-head",
                              "fp8-head+rot=h1+mean=stats+win=20",
                              "fp8-tensor",
                              "fp8-tensor+rot=haar+mean=stats+scale=on+sink=3",
                              "fp8-tensor+mean=page",
                              "mxfp4+rot=h1",
                              "nvfp4+rot=h1+mean=stats",
                              "q8_0",
                              "q5_0+rot=haar",
                              "q4_0+rot=h1+mean=stats+scale=on+sink=4+win=128",
                              "iq4_nl",
                              "k4v4+mean=page",
                              "k3v5+mean=page+scale=off+sink=0+win=70+page=128",
                              "q4_0+mean=page+sink=3",
                              "k4tv4t",
                              "k2tv3+win=50",
                              "k4v3t",
                              "k2.5qv3.5q",
                              "k3pv3",
                              "k4pv4p+rot=haar",
                              "kivi-k4v4",
                              "kivi-k3v2-g32+rot=h1+win=10",
                              "kivi-k2v8+page=64+sink=5",
                              "k4v4+rot=h2"};

struct Features {
  int window;
  float softcap, alibi;
  bool sinks;
};
constexpr Features kFeatures[] = {{0, 0, 0, false}, {61, 0, 0, false},  {0, 15, 0, false}, {0, 0, 8, false},
                                  {0, 0, 0, true},  {700, 9, 0, false}, {0, 0, 6, true},   {300, 20, 8, true}};
constexpr int kGroups[] = {1, 2, 3, 4, 8};

struct Case {
  int dim_k, dim_v, kv_heads, longest;
};
constexpr Case kPackedCases[] = {{32, 64, 3, 1300},  {64, 64, 2, 1500}, {128, 128, 2, 800}, {256, 32, 1, 900},
                                 {512, 512, 1, 600}, {80, 112, 2, 700}, {192, 128, 1, 700}, {96, 96, 1, 700},
                                 {112, 80, 1, 700},  {576, 512, 1, 350}};
constexpr Case kRawCases[] = {
    {80, 80, 2, 1200}, {96, 8, 2, 1100}, {8, 96, 3, 700}, {64, 128, 1, 1500}, {256, 256, 1, 600}};

// Formats of blocks take multiples of their block.
bool Fits(const KvSpec& spec, const Case& c) {
  return c.dim_k % RecordBlock(spec.k.family, Kv::kK) == 0 && c.dim_v % RecordBlock(spec.v.family, Kv::kV) == 0;
}

// Steps of mixed chunks and single tokens of three sequences, until the longest has `longest` tokens; positions ascend
// with gaps.
std::vector<std::vector<Token>> Schedule(Random* random, int longest) {
  struct Growing {
    int tokens = 0, position = 0;
  } sequences[3];
  std::vector<std::vector<Token>> steps;
  while (sequences[0].tokens < longest) {
    int left[3] = {};
    const bool decode = random->Below(3) == 0;
    for (int s = 0; s < 3; ++s) {
      if (s > 0 && random->Below(2) == 0) continue;
      left[s] = decode ? 1 : 1 + static_cast<int>(random->Below(s == 0 ? 200 : 40));
    }
    std::vector<Token>& step = steps.emplace_back();
    while (left[0] + left[1] + left[2] > 0) {
      const int s = static_cast<int>(random->Below(3));
      if (left[s] == 0) continue;
      --left[s];
      Growing& g = sequences[s];
      step.push_back({5 * s, g.position, static_cast<uint64_t>(s << 20 | g.tokens)});
      ++g.tokens;
      g.position += 1 + static_cast<int>(random->Below(20) == 0 ? random->Below(40) : 0);
    }
  }
  return steps;
}

Model MakeModel(const std::string& spec, const Case& c, int group, const Features& features, uint64_t seed) {
  Model model = reference::MakeModel(spec, {{c.kv_heads * group, c.kv_heads, c.dim_k, c.dim_v}}, 2);
  model.seed = seed;
  model.params.window = features.window;
  model.params.softcap = features.softcap;
  model.params.max_alibi_bias = features.alibi;
  for (int h = 0; features.sinks && h < c.kv_heads * group; ++h) {
    model.sinks.push_back(static_cast<float>(h % 3) * 2.5f - 1.0f);
  }
  return model;
}

// Largest errors of all steps.
Errors RunAll(const Model& model, const std::vector<std::vector<Token>>& steps, size_t stride) {
  auto cache = reference::MakeCache(model);
  Checker checker(model);
  Errors worst;
  for (const std::vector<Token>& step : steps) {
    const StepResult result = reference::RunStep(cache.get(), model, step);
    checker.Append(step);
    const Errors errors = checker.Compare(step, result, stride);
    worst.out = std::max(worst.out, errors.out);
    worst.lse = std::max(worst.lse, errors.lse);
    worst.packed_seen += errors.packed_seen;
    worst.raw_seen += errors.raw_seen;
  }
  return worst;
}

class AttendSpec : public ::testing::TestWithParam<std::tuple<int, Arithmetic>> {};

TEST_P(AttendSpec, EqualsTheReference) {
  const auto [number, arithmetic] = GetParam();
  const Bounds bounds = BoundsOf(arithmetic);
  const std::string spec = kSpecs[number];
  const bool raw = ParseSpec(spec).value().raw();
  Errors all;
  for (int i = 0; i < static_cast<int>(raw ? std::size(kRawCases) : std::size(kPackedCases)); ++i) {
    const Case& c = raw ? kRawCases[i] : kPackedCases[i];
    if (!Fits(ParseSpec(spec).value(), c)) continue;
    if (spec.find("haar") != std::string::npos && c.dim_k > 128) continue;  // its matrix takes seconds to make
    const int group = kGroups[(number + 2 * i) % 5];
    const Features& features = kFeatures[(3 * number + i) % 8];
    const uint64_t seed = static_cast<uint64_t>(100 * number + i);
    Random random(seed);
    Model model = MakeModel(spec, c, group, features, seed);
    model.config.arithmetic = arithmetic;
    const Errors errors = RunAll(model, Schedule(&random, c.longest), 41);
    SCOPED_TRACE(testing::Message() << spec << " dims " << c.dim_k << " " << c.dim_v << " kv_heads " << c.kv_heads
                                    << " group " << group << " window " << features.window << " softcap "
                                    << features.softcap << " alibi " << features.alibi << " sinks " << features.sinks);
    EXPECT_LE(errors.out, bounds.out);
    EXPECT_LE(errors.lse, bounds.lse);
    EXPECT_GT(errors.packed_seen, 0);
    EXPECT_EQ(errors.raw_seen > 0,
              model.config.spec.win > 0 || model.config.spec.sink > 0 || model.config.spec.mean != MeanMode::kOff ||
                  model.config.spec.k.family == Family::kKivi || model.config.spec.k.family == Family::kFp8Head ||
                  model.config.spec.k.family == Family::kFp8Tensor);
    all.out = std::max(all.out, errors.out);
    all.lse = std::max(all.lse, errors.lse);
  }
  RecordProperty("worst_out_1e9", static_cast<int>(1e9 * all.out));
  RecordProperty("worst_lse_1e9", static_cast<int>(1e9 * all.lse));
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, Arithmetic>>& test) {
  constexpr const char* kNames[] = {"int16_", "exact_", "fast_"};
  const auto [number, arithmetic] = test.param;
  std::string name = std::string(kNames[static_cast<int>(arithmetic)]) + kSpecs[number];
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, AttendSpec,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kSpecs))),
                                            ::testing::ValuesIn(kArithmetics)),
                         NameOf);

// Means and scales of a profile, for K and V, and other widths in each layer.
TEST(Attend, GivenStatisticsAndWidths) {
  for (const char* spec :
       {"k4v4", "k4v4+scale=off", "k3v3+mean=page+win=40", "k4tv3", "q8_0+mean=stats+scale=on", "fp8-head",
        "fp8-head+mean=stats+rot=h1", "fp8-tensor+mean=profile+scale=on", "fp8-tensor+rot=h2+mean=page"}) {
    for (const Arithmetic arithmetic : {Arithmetic::kInt16, Arithmetic::kExact}) {
      Random random(12);
      Model model = reference::MakeModel(spec, {{4, 2, 64, 32}, {4, 2, 32, 64}}, 2);
      model.config.arithmetic = arithmetic;
      for (const LayerShape& shape : model.config.layers) {
        LayerStats& stats = model.config.statistics.emplace_back();
        for (int i = 0; i < 2 * shape.head_dim_k; ++i) {
          stats.k_mean.push_back(static_cast<float>(3 * random.Gaussian()));
          stats.k_scale.push_back(static_cast<float>(std::exp2(2 * random.Uniform() - 1)));
          stats.k_variance.push_back(static_cast<float>(std::exp2(4 * random.Uniform() - 2)));
        }
        for (int i = 0; i < 2 * shape.head_dim_v; ++i) {
          stats.v_mean.push_back(static_cast<float>(random.Gaussian()));
          stats.v_scale.push_back(static_cast<float>(std::exp2(2 * random.Uniform() - 1)));
          stats.v_variance.push_back(static_cast<float>(std::exp2(4 * random.Uniform() - 2)));
        }
      }
      if (ParseSpec(spec).value().v.family == Family::kLloydMax && std::string(spec) != "k4tv3") {
        model.config.layer_bits = {{5, 2}, {3, 8}};
      }
      const Errors errors = RunAll(model, Schedule(&random, 600), 37);
      EXPECT_LE(errors.out, BoundsOf(arithmetic).out) << spec;
      EXPECT_LE(errors.lse, BoundsOf(arithmetic).lse) << spec;
      EXPECT_GT(errors.packed_seen, 0);
    }
  }
}

// Rows of one step alone: every length around the chunk, page, window and statistics boundaries.
TEST(Attend, OneTokenAtATime) {
  const Bounds bounds = BoundsOf(Arithmetic::kInt16);
  Model model = MakeModel("k4v4+sink=5+win=20", {32, 32, 1, 0}, 2, {0, 0, 0, false}, 3);
  auto cache = reference::MakeCache(model);
  Checker checker(model);
  for (int i = 0; i < 600; ++i) {
    const std::vector<Token> step = reference::TokenRun(0, i, 1);
    const StepResult result = reference::RunStep(cache.get(), model, step);
    checker.Append(step);
    const Errors errors = checker.Compare(step, result);
    ASSERT_LE(errors.out, bounds.out) << "token " << i;
    ASSERT_LE(errors.lse, bounds.lse) << "token " << i;
    const int64_t packed = i + 1 < 5 + 128 ? 0 : i + 1 - 20 - 5;
    ASSERT_EQ(errors.packed_seen, packed) << "token " << i;
  }
}

// The limits of what a cache takes: the largest head, sinks and windows longer than a chunk, a window of one token.
TEST(Attend, Extremes) {
  const std::tuple<const char*, Case, int> cases[] = {{"k2v3", {1024, 1024, 1, 350}, 0},
                                                      {"k5v6", {1024, 32, 1, 350}, 0},
                                                      {"k7v4", {1024, 1024, 1, 350}, 0},
                                                      {"f16", {1, 1, 2, 350}, 0},
                                                      {"k4v4+sink=600+win=0", {32, 32, 1, 1500}, 0},
                                                      {"k4v4+sink=1+win=700", {32, 32, 1, 1500}, 0},
                                                      {"k4v4+win=65536", {32, 32, 1, 400}, 0},
                                                      {"k4v4+sink=0+win=0", {32, 32, 1, 700}, 1},
                                                      {"k4v4", {32, 32, 1, 700}, 1}};
  for (const auto& [spec, shape, window] : cases) {
    for (const Arithmetic arithmetic : kArithmetics) {
      Random random(9);
      Model model = MakeModel(spec, shape, 2, {window, 0, 0, false}, 5);
      model.config.arithmetic = arithmetic;
      const Errors errors = RunAll(model, Schedule(&random, shape.longest), 29);
      EXPECT_LE(errors.out, BoundsOf(arithmetic).out) << spec;
      EXPECT_LE(errors.lse, BoundsOf(arithmetic).lse) << spec;
    }
  }
}

// One packed token, which therefore has the page's largest score and scale, with ever larger logits: its weight is the
// largest that 16 bits hold, and the output is its value.
TEST(Attend, TheLargestWeightFits) {
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const float scale : {1.0f, 30.0f, 60.0f, 125.0f, 250.0f, 500.0f}) {
      Model model = reference::MakeModel("k4v4+mean=off+scale=off+sink=0+win=0", {{4, 2, 64, 64}});
      model.config.arithmetic = arithmetic;
      model.params.scale = scale / 8;
      Checker checker(model);
      auto cache = reference::MakeCache(model);
      for (int s = 0; s < 60; ++s) {
        const std::vector<Token> step = {{s, 0, static_cast<uint64_t>(1000 + s)}};
        const StepResult result = reference::RunStep(cache.get(), model, step);
        checker.Append(step);
        ASSERT_LE(checker.Compare(step, result).out, arithmetic == Arithmetic::kExact ? 2e-5 : 5e-4)
            << "scale " << scale << ", sequence " << s;
      }
    }
  }
}

// A query that is not finite gives NaN, not something that looks like a number; a tiny one gives the mean of V.
TEST(Attend, QueriesThatAreNotNumbers) {
  for (const char* spec : {"k4v4+mean=off+scale=off+sink=0+win=0", "k4v4", "f16"}) {
    for (const Arithmetic arithmetic : kArithmetics) {
      Model model = reference::MakeModel(spec, {{2, 1, 32, 32}});
      model.config.arithmetic = arithmetic;
      auto cache = reference::MakeCache(model);
      (void)reference::RunStep(cache.get(), model, reference::TokenRun(0, 0, 300));
      for (const float bad : {NAN, INFINITY, 1e-36f, 0.0f}) {
        const std::vector<Token> step = reference::TokenRun(0, 300, 1);
        ASSERT_TRUE(cache->BeginStep(reference::StepTokens(step)).ok());
        reference::WriteAll(cache.get(), model, step);
        std::vector<float> q(64, bad), out(64, 7.0f);
        q[40] = 1.0f;  // the second head is half usable
        Queries queries;
        queries.data = q.data();
        queries.out = out.data();
        queries.heads = 2;
        queries.head_stride = queries.out_head_stride = 32 * 4;
        cache->Attend(0, model.Params(), queries, 0, 1);
        cache->AbortStep();
        for (size_t c = 0; c < 64; ++c) EXPECT_EQ(std::isfinite(out[c]), bad < 1) << spec << " " << bad << " at " << c;
      }
    }
  }
}

// What a worker needs beside the history does not grow with it.
TEST(Attend, ScratchIsConstantInTheContext) {
  for (const char* spec : {"k4v4", "k3v8+win=300"}) {
    Model model = reference::MakeModel(spec, {{4, 2, 32, 64}}, 2);
    model.config.arithmetic = Arithmetic::kInt16;
    auto cache = reference::MakeCache(model);
    size_t scratch = 0;
    int tokens = 0;
    for (const int longer : {9000, 20000, 70000}) {
      while (tokens < longer) {
        const std::vector<Token> step = reference::TokenRun(0, tokens, 1000);
        std::vector<StepToken> begun = reference::StepTokens(step);
        ASSERT_TRUE(cache->BeginStep(begun).ok());
        reference::WriteAll(cache.get(), model, step);
        ASSERT_TRUE(cache->EndStep().ok());
        tokens += 1000;
      }
      (void)reference::RunStep(cache.get(), model, reference::TokenRun(0, tokens, 1), 2);
      ++tokens;
      const size_t now = cache->Usage().scratch;
      EXPECT_EQ(now, scratch == 0 ? now : scratch) << spec << " at " << tokens;
      scratch = now;
    }
  }
}

TEST(Attend, EverySimdTarget) {
  const std::vector<std::string> targets = SimdTargets();
  ASSERT_FALSE(targets.empty());
  for (const std::string& target : targets) {
    ForceSimdTarget(target);
    int i = 0;
    for (const char* spec : {"k2v3", "k4v4", "k5v6+sink=7+win=33", "k7v8", "k3v4", "k8v2", "f16", "bf16", "f32"}) {
      const Case c = ParseSpec(spec).value().raw() ? Case{80, 24, 2, 700}
                     : i % 2 == 0                  ? Case{112, 80, 2, 700}
                                                   : Case{64, 128, 2, 700};
      for (const Arithmetic arithmetic : kArithmetics) {
        Random random(static_cast<uint64_t>(i));
        Model model = MakeModel(spec, c, 3, kFeatures[(7 + i) % 8], 77);
        model.config.arithmetic = arithmetic;
        const Errors errors = RunAll(model, Schedule(&random, c.longest), 59);
        EXPECT_LE(errors.out, BoundsOf(arithmetic).out) << target << " " << spec;
        EXPECT_LE(errors.lse, BoundsOf(arithmetic).lse) << target << " " << spec;
      }
      ++i;
    }
  }
  ForceSimdTarget("");
}

}  // namespace
}  // namespace tersekv
