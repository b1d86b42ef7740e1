// SPDX-License-Identifier: Apache-2.0
// Attention is bit-equal for any number of workers, any cut of the tokens into steps, any batch neighbours and any
// order of heads (docs/decisions/0001-contract.md, section 5).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::Random;
using reference::StepResult;
using reference::Token;

// sinks, softcap and ALiBi on; two layers of different shapes.
// "exact " or "fast " before a spec: in that arithmetic.
Model TestModel(const std::string& name, int max_workers = 1) {
  const size_t space = name.find(' ');
  Model model = reference::MakeModel(space == std::string::npos ? name : name.substr(space + 1),
                                     {{6, 2, 64, 32}, {4, 1, 32, 64}}, max_workers);
  model.config.arithmetic = name.starts_with("exact ")  ? Arithmetic::kExact
                            : name.starts_with("fast ") ? Arithmetic::kFast
                                                        : Arithmetic::kInt16;
  model.params.softcap = 20;
  model.params.max_alibi_bias = 4;
  model.sinks = {0.5f, -1.0f, 2.0f, 0.0f, 1.0f, -3.0f};
  return model;
}

std::vector<Token> Concat(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// NaN never equals, so that a missing output cannot pass.
void ExpectBitEqual(const StepResult& a, const StepResult& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t l = 0; l < a.size(); ++l) {
    ASSERT_EQ(a[l].out.size(), b[l].out.size()) << what;
    size_t different = 0;
    for (size_t i = 0; i < a[l].out.size(); ++i) different += a[l].out[i] == b[l].out[i] ? 0u : 1u;
    EXPECT_EQ(different, 0u) << what << ", layer " << l << ", of " << a[l].out.size() << " values";
    EXPECT_TRUE(a[l].lse == b[l].lse) << what << ", layer " << l << ", lse";
  }
}

class Determinism : public ::testing::TestWithParam<const char*> {};

// The plan is cut for max_workers, whoever comes.
TEST_P(Determinism, AnyNumberOfWorkers) {
  const std::vector<Token> prompt = Concat(reference::TokenRun(0, 0, 2300, 1), reference::TokenRun(9, 0, 90, 2));
  const std::vector<Token> decode = Concat(reference::TokenRun(0, 2300, 1, 1), reference::TokenRun(9, 90, 1, 2));
  const std::vector<Token> chunk = Concat(reference::TokenRun(9, 91, 30, 2), reference::TokenRun(0, 2301, 40, 1));
  StepResult expected[3];
  for (const auto& [workers, max_workers] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 3}, {8, 8}, {3, 8}}) {
    const Model model = TestModel(GetParam(), max_workers);
    auto cache = reference::MakeCache(model);
    const std::string what = std::to_string(workers) + " workers of " + std::to_string(max_workers) + ", step ";
    int step = 0;
    for (const std::vector<Token>* tokens : {&prompt, &decode, &chunk}) {
      const StepResult result = reference::RunStep(cache.get(), model, *tokens, workers);
      if (expected[step].empty()) expected[step] = result;
      ExpectBitEqual(result, expected[step], what + std::to_string(step));
      ++step;
    }
  }
}

TEST_P(Determinism, AnyCutIntoSteps) {
  const Model model = TestModel(GetParam(), 2);
  const std::vector<Token> tokens = reference::TokenRun(3, 0, 300);
  const auto run = [&](const std::vector<size_t>& sizes) {
    auto cache = reference::MakeCache(model);
    return reference::RunInSteps(cache.get(), model, tokens, sizes);
  };
  const StepResult whole = run({300});
  ExpectBitEqual(run({1}), whole, "single tokens");
  ExpectBitEqual(run({131, 1}), whole, "a prompt of 131, then single tokens");
  Random random(5);
  for (int i = 0; i < 5; ++i) {
    std::vector<size_t> sizes;
    for (int n = 0; n < 300; ++n) sizes.push_back(1 + random.Below(i < 3 ? 90 : 9));
    ExpectBitEqual(run(sizes), whole, "random cuts " + std::to_string(i));
  }
}

// Long enough for several chunks; only the end is looked at.
TEST_P(Determinism, AnyCutOfALongPrompt) {
  const Model model = TestModel(GetParam(), 3);
  const std::vector<Token> tokens = reference::TokenRun(0, 0, 1700);
  auto whole = reference::MakeCache(model), cut = reference::MakeCache(model);
  const StepResult a = reference::RunStep(whole.get(), model, tokens);
  const StepResult b = reference::RunInSteps(cut.get(), model, tokens, {513, 1, 64, 1, 700, 3, 211});
  ExpectBitEqual(a, b, "1700 tokens");
  const std::vector<Token> next = reference::TokenRun(0, 1700, 1);
  ExpectBitEqual(reference::RunStep(whole.get(), model, next), reference::RunStep(cut.get(), model, next), "decode");
}

TEST_P(Determinism, AnyBatchNeighbours) {
  const Model model = TestModel(GetParam(), 2);
  auto alone = reference::MakeCache(model), together = reference::MakeCache(model);
  int length[4] = {};
  Random random(11);
  for (int step = 0; step < 12; ++step) {
    std::vector<Token> mine, all;
    std::vector<size_t> at;
    for (int i = 0, n = step < 4 ? 130 : 25; i < n; ++i) {
      const int s = static_cast<int>(random.Below(4));
      const Token token = reference::TokenRun(s, length[s]++, 1, static_cast<uint64_t>(s))[0];
      if (s == 2) mine.push_back(token), at.push_back(all.size());
      all.push_back(token);
    }
    if (mine.empty()) continue;
    const StepResult expected = reference::RunStep(alone.get(), model, mine);
    const StepResult batch = reference::RunStep(together.get(), model, all, 2);
    StepResult picked;
    for (const size_t i : at) reference::Extend(&picked, reference::Slice(model, batch, i, 1));
    ExpectBitEqual(picked, expected, "step " + std::to_string(step));
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Determinism,
                         ::testing::Values("k4v4", "exact k4v4", "fast k4v3", "k5v6+win=20", "k3v5+sink=7+win=33",
                                           "k2v8+mean=off+scale=off+sink=0+win=0+page=128", "f16"));

TEST(DeterminismTargets, WorkersAndCutsOnEverySimdTarget) {
  const std::vector<Token> tokens = reference::TokenRun(0, 0, 1400);
  const Model model = TestModel("k4v4", 3);
  for (const std::string& target : SimdTargets()) {
    ForceSimdTarget(target);
    auto one = reference::MakeCache(model), three = reference::MakeCache(model);
    const StepResult a = reference::RunStep(one.get(), model, tokens);
    ExpectBitEqual(reference::RunInSteps(three.get(), model, tokens, {900, 1, 250}, 3), a, target);
  }
  ForceSimdTarget("");
}

// Runs one layer of {heads, kv_heads, 32, 32} whose query head h is head `q_from[h]` and whose KV head is `kv_from[h]`
// of the same numbers. Returns the outputs in the original order.
std::vector<float> RunPermuted(const std::string& spec, const std::vector<int>& q_from,
                               const std::vector<int>& kv_from) {
  const int heads = static_cast<int>(q_from.size()), kv_heads = static_cast<int>(kv_from.size()), d = 32, n = 700;
  Model model = reference::MakeModel(spec, {{heads, kv_heads, d, d}});
  model.config.arithmetic = Arithmetic::kInt16;
  auto cache = reference::MakeCache(model);
  std::vector<float> rows[3], out(static_cast<size_t>(n * heads * d)), back(out.size());
  for (int t = 0; t < n; ++t) {
    const uint64_t content = static_cast<uint64_t>(t);
    const std::vector<float> source[] = {model.K(0, content), model.V(0, content), model.Q(0, content)};
    for (int i = 0; i < 3; ++i) {
      for (const int from : i == 2 ? q_from : kv_from) {
        rows[i].insert(rows[i].end(), source[i].begin() + from * d, source[i].begin() + (from + 1) * d);
      }
    }
  }
  EXPECT_TRUE(cache->BeginStep(reference::StepTokens(reference::TokenRun(0, 0, n))).ok());
  cache->WriteRows(0, Kv::kK, rows[0].data(), kv_heads * d * 4, 0, 1);
  cache->WriteRows(0, Kv::kV, rows[1].data(), kv_heads * d * 4, 0, 1);
  Queries queries;
  queries.data = rows[2].data();
  queries.out = out.data();
  queries.token_stride = queries.out_token_stride = heads * d * 4;
  queries.head_stride = queries.out_head_stride = d * 4;
  queries.heads = heads;
  cache->Attend(0, model.Params(), queries, 0, 1);
  EXPECT_TRUE(cache->EndStep().ok());
  for (int t = 0; t < n; ++t) {
    for (int h = 0; h < heads; ++h) {
      const auto from = out.begin() + (t * heads + h) * d;
      std::copy(from, from + d, back.begin() + (t * heads + q_from[static_cast<size_t>(h)]) * d);
    }
  }
  return back;
}

TEST(DeterminismHeads, QueryHeadsOfAGroupMayComeInAnyOrder) {
  EXPECT_EQ(RunPermuted("k4v4", {0, 1, 2, 3, 4, 5}, {0, 1}), RunPermuted("k4v4", {2, 0, 1, 4, 3, 5}, {0, 1}));
}

// Signs differ by KV head, so KV heads move freely only without a rotation.
TEST(DeterminismHeads, KvHeadsMayComeInAnyOrder) {
  for (const char* spec : {"k4v4+rot=none", "k6v3+rot=none+sink=0+win=0", "f16"}) {
    EXPECT_EQ(RunPermuted(spec, {0, 1, 2, 3, 4, 5}, {0, 1, 2}), RunPermuted(spec, {4, 5, 0, 1, 2, 3}, {2, 0, 1}))
        << spec;
  }
}

}  // namespace
}  // namespace tersekv
