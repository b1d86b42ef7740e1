// SPDX-License-Identifier: Apache-2.0
// What hosts need that step layer by layer: one cache a layer over shared memory, raw prefill, rows read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "tersekv/cache.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::StepResult;
using reference::Token;
using reference::TokenRun;
using ::testing::HasSubstr;

const std::vector<LayerShape> kShapes = {{4, 2, 32, 32}, {4, 1, 64, 32}, {4, 2, 32, 32}};
const char* const kSpecs[] = {"k4v4",
                              "k3v5+sink=7+win=33",
                              "k8v8+sink=0+win=0",
                              "kivi-k4v4+page=64+win=30+sink=2",
                              "k3tv3t",
                              "q8_0+mean=page+sink=3+win=20",
                              "f16",
                              "f32"};

std::unique_ptr<KvCache> MakeLayerCache(const Model& model, int layer, std::shared_ptr<CacheMemory> memory) {
  CacheConfig config = model.config;
  config.layers = {model.config.layers[static_cast<size_t>(layer)]};
  config.first_layer = layer;
  config.memory = std::move(memory);
  auto cache = KvCache::Create(config);
  EXPECT_TRUE(cache.has_value()) << cache.status().message();
  return *std::move(cache);
}

// A step of one layer's cache with the rows that the whole model has there.
std::vector<float> StepLayer(KvCache* cache, const Model& model, int layer, const std::vector<Token>& tokens) {
  const LayerShape& shape = model.config.layers[static_cast<size_t>(layer)];
  EXPECT_TRUE(cache->BeginStep(reference::StepTokens(tokens)).ok());
  std::vector<float> k, v, q;
  for (const Token& t : tokens) {
    for (const auto& [rows, to] : {std::pair{model.K(layer, t.content), &k}, std::pair{model.V(layer, t.content), &v},
                                   std::pair{model.Q(layer, t.content), &q}}) {
      to->insert(to->end(), rows.begin(), rows.end());
    }
  }
  cache->WriteRows(0, Kv::kK, k.data(), shape.kv_heads * shape.head_dim_k * 4, 0, 1);
  cache->WriteRows(0, Kv::kV, v.data(), shape.kv_heads * shape.head_dim_v * 4, 0, 1);
  std::vector<float> out(tokens.size() * static_cast<size_t>(shape.heads * shape.head_dim_v), NAN);
  Queries queries;
  queries.data = q.data();
  queries.heads = shape.heads;
  queries.head_stride = shape.head_dim_k * 4;
  queries.token_stride = shape.heads * queries.head_stride;
  queries.out = out.data();
  queries.out_head_stride = shape.head_dim_v * 4;
  queries.out_token_stride = shape.heads * queries.out_head_stride;
  cache->Attend(0, model.Params(), queries, 0, 1);
  EXPECT_TRUE(cache->EndStep().ok());
  return out;
}

std::vector<float> Read(const KvCache& cache, int32_t seq, Kv side, int64_t first, int64_t n) {
  const LayerShape& shape = cache.config().layers[0];
  const int width = shape.kv_heads * (side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
  std::vector<float> rows(static_cast<size_t>(n * width), NAN);
  EXPECT_TRUE(cache.ReadRows(seq, 0, side, first, n, rows.data(), width * 4).ok());
  return rows;
}

// Largest error of `out` against attention in double precision over rows k, v of `visible` tokens, relative to the
// largest value of a head.
double AttentionError(const LayerShape& s, const std::vector<float>& q, float scale, const std::vector<float>& k,
                      const std::vector<float>& v, int visible, const float* out) {
  double worst = 0;
  for (int h = 0; h < s.heads; ++h) {
    const int kv = h / (s.heads / s.kv_heads);
    std::vector<double> weight(static_cast<size_t>(visible)), o(static_cast<size_t>(s.head_dim_v));
    double largest = -INFINITY, sum = 0, size = 0, error = 0;
    for (int t = 0; t < visible; ++t) {
      double score = 0;
      for (int c = 0; c < s.head_dim_k; ++c) {
        score += static_cast<double>(q[static_cast<size_t>(h * s.head_dim_k + c)]) *
                 static_cast<double>(k[static_cast<size_t>((t * s.kv_heads + kv) * s.head_dim_k + c)]);
      }
      weight[static_cast<size_t>(t)] = score * static_cast<double>(scale);
      largest = std::max(largest, weight[static_cast<size_t>(t)]);
    }
    for (double& w : weight) sum += w = std::exp(w - largest);
    for (int t = 0; t < visible; ++t) {
      for (int c = 0; c < s.head_dim_v; ++c) {
        o[static_cast<size_t>(c)] +=
            weight[static_cast<size_t>(t)] / sum *
            static_cast<double>(v[static_cast<size_t>((t * s.kv_heads + kv) * s.head_dim_v + c)]);
      }
    }
    for (int c = 0; c < s.head_dim_v; ++c) {
      size = std::max(size, std::fabs(o[static_cast<size_t>(c)]));
      error = std::max(error, std::fabs(o[static_cast<size_t>(c)] - static_cast<double>(out[h * s.head_dim_v + c])));
    }
    worst = std::max(worst, error / size);
  }
  return worst;
}

class LayerCaches : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerCaches, AnswerAsOneCacheOfAllLayers) {
  const Model model = reference::MakeModel(GetParam(), kShapes);
  auto whole = reference::MakeCache(model);
  const auto memory = MakeCacheMemory(0);
  std::vector<std::unique_ptr<KvCache>> parts;
  for (int l = 0; l < 3; ++l) parts.push_back(MakeLayerCache(model, l, memory));
  int32_t at = 0;
  for (const int n : {150, 1, 1, 40, 1, 700, 1}) {
    std::vector<Token> step = TokenRun(0, at, n);
    if (at > 0) step.push_back({7, at, 1234});  // a second sequence beside it
    const StepResult want = reference::RunStep(whole.get(), model, step);
    for (int l = 0; l < 3; ++l) {
      ASSERT_EQ(StepLayer(parts[static_cast<size_t>(l)].get(), model, l, step), want[static_cast<size_t>(l)].out)
          << "layer " << l << ", " << n << " tokens at " << at;
    }
    at += n;
  }
  size_t pages = 0, rows = 0;
  for (const auto& part : parts) pages += part->Usage().pages, rows += part->Usage().raw_rows;
  EXPECT_EQ(pages, whole->Usage().pages);
  EXPECT_EQ(rows, whole->Usage().raw_rows);
  const size_t used = parts[0]->Usage().bytes_used + parts[1]->Usage().bytes_used + parts[2]->Usage().bytes_used;
  EXPECT_GE(parts[0]->Usage().bytes_reserved, used);
  parts.pop_back();
  parts.erase(parts.begin());  // what a cache held is free for the others
  EXPECT_EQ(parts[0]->Usage().bytes_reserved, MakeLayerCache(model, 1, memory)->Usage().bytes_reserved);
}

// After a step of one token, ReadRows gives what its query saw.
TEST_P(LayerCaches, ReadRowsAreWhatAttentionReads) {
  Model model = reference::MakeModel(GetParam(), {kShapes[0]});
  model.config.arithmetic = Arithmetic::kExact;
  auto cache = MakeLayerCache(model, 0, nullptr);
  (void)StepLayer(cache.get(), model, 0, TokenRun(0, 0, 333));
  (void)StepLayer(cache.get(), model, 0, TokenRun(0, 333, 1));
  ASSERT_TRUE(cache->Truncate(0, 300).ok());
  const Token last = {0, 300, 99};
  const std::vector<float> out = StepLayer(cache.get(), model, 0, {last});
  EXPECT_LE(AttentionError(kShapes[0], model.Q(0, last.content), model.Params().scale, Read(*cache, 0, Kv::kK, 0, 301),
                           Read(*cache, 0, Kv::kV, 0, 301), 301, out.data()),
            2e-5);
  EXPECT_EQ(cache->Positions(0).size(), 301u);
  EXPECT_EQ(cache->Positions(0)[300], 300);
  EXPECT_TRUE(cache->Positions(5).empty());
}

// prefill=raw: history as it was before the step, the step's own tokens as they were given (f16, or the raw type).
TEST_P(LayerCaches, RawPrefillSeesItsOwnTokensRaw) {
  Model model = reference::MakeModel(GetParam(), {kShapes[0]});
  model.config.arithmetic = Arithmetic::kExact;
  model.config.prefill = Prefill::kRaw;
  const LayerShape& shape = kShapes[0];
  auto cache = MakeLayerCache(model, 0, nullptr);
  int32_t at = 0;
  for (const int n : {200, 300, 1, 70}) {
    const std::vector<Token> step = TokenRun(0, at, n);
    std::vector<float> k = Read(*cache, 0, Kv::kK, 0, at), v = Read(*cache, 0, Kv::kV, 0, at);
    for (const Token& t : step) {
      for (float x : model.K(0, t.content)) k.push_back(model.config.spec.k.bits == 32 ? x : F16ToF32(F32ToF16(x)));
      for (float x : model.V(0, t.content)) v.push_back(model.config.spec.k.bits == 32 ? x : F16ToF32(F32ToF16(x)));
    }
    const std::vector<float> out = StepLayer(cache.get(), model, 0, step);
    if (n == 1) k = Read(*cache, 0, Kv::kK, 0, at + 1), v = Read(*cache, 0, Kv::kV, 0, at + 1);  // decode as ever
    for (int i = 0; i < n; i += 13) {
      ASSERT_LE(AttentionError(shape, model.Q(0, step[static_cast<size_t>(i)].content), model.Params().scale, k, v,
                               at + i + 1, &out[static_cast<size_t>(i * shape.heads * shape.head_dim_v)]),
                2e-5)
          << "query " << i << " of " << n << " at " << at;
    }
    at += n;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, LayerCaches, ::testing::ValuesIn(kSpecs));

TEST(SharedMemory, TakesOneBudgetForAll) {
  const Model model = reference::MakeModel("k4v4", {kShapes[0], kShapes[0]});
  const auto memory = MakeCacheMemory(200 << 10);
  auto a = MakeLayerCache(model, 0, memory), b = MakeLayerCache(model, 1, memory);
  const int64_t alone = a->TokensThatFit(0);
  ASSERT_GT(alone, 500);
  (void)StepLayer(a.get(), model, 0, TokenRun(0, 0, 500));
  EXPECT_LT(b->TokensThatFit(0), alone - 200);
  const Status status = b->BeginStep(reference::StepTokens(TokenRun(0, 0, static_cast<int>(alone))));
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(status.message(), HasSubstr("204800 bytes"));
  a.reset();
  EXPECT_EQ(b->TokensThatFit(0), alone);
}

TEST(SharedMemory, ScratchIsGivenBackAndTakenAgain) {
  const Model model = reference::MakeModel("k4v4", {kShapes[0], kShapes[0]});
  const auto memory = MakeCacheMemory(0);
  auto a = MakeLayerCache(model, 0, memory), b = MakeLayerCache(model, 1, memory);
  (void)StepLayer(a.get(), model, 0, TokenRun(0, 0, 2000));
  (void)StepLayer(b.get(), model, 1, TokenRun(0, 0, 2000));
  const size_t large = a->Usage().scratch;
  EXPECT_GE(large, 2000u * 128u * 2u);
  EXPECT_EQ(b->Usage().scratch, large);  // one scratch for both
  ReleaseScratch(memory.get());
  EXPECT_EQ(a->Usage().scratch, 0u);
  (void)StepLayer(a.get(), model, 0, TokenRun(0, 2000, 1));
  (void)StepLayer(b.get(), model, 1, TokenRun(0, 2000, 1));
  EXPECT_LT(a->Usage().scratch, large / 2);
}

// Query heads change from step to step: each answer is that of a cache made for them.
TEST(SharedMemory, QueryHeadsMayChange) {
  const LayerShape wide = {8, 2, 32, 32}, narrow = {2, 2, 32, 32};
  for (const char* spec : {"k4v4", "f32"}) {
    const Model eight = reference::MakeModel(spec, {wide}), two = reference::MakeModel(spec, {narrow});
    auto changing = MakeLayerCache(two, 0, nullptr), fixed = MakeLayerCache(eight, 0, nullptr);
    (void)StepLayer(changing.get(), two, 0, TokenRun(0, 0, 300));
    (void)StepLayer(fixed.get(), eight, 0, TokenRun(0, 0, 300));
    ASSERT_TRUE(changing->SetQueryHeads(0, 8).ok());
    EXPECT_EQ(StepLayer(changing.get(), eight, 0, TokenRun(0, 300, 3)),
              StepLayer(fixed.get(), eight, 0, TokenRun(0, 300, 3)));
    EXPECT_THAT(changing->SetQueryHeads(0, 3).message(), HasSubstr("multiple"));
    EXPECT_THAT(changing->SetQueryHeads(1, 8).message(), HasSubstr("the cache has 1"));
    EXPECT_EQ(changing->config().layers[0].heads, 8);
  }
}

TEST(SharedMemory, WrongInputIsNamed) {
  Model model = reference::MakeModel("k4v4", {kShapes[0]});
  auto cache = MakeLayerCache(model, 0, nullptr);
  (void)StepLayer(cache.get(), model, 0, TokenRun(3, 0, 10));
  std::vector<float> rows(1000);
  EXPECT_THAT(cache->ReadRows(3, 0, Kv::kK, 5, 6, rows.data(), 256).message(), HasSubstr("it has 10"));
  EXPECT_THAT(cache->ReadRows(4, 0, Kv::kK, 0, 1, rows.data(), 256).message(), HasSubstr("it has 0"));
  EXPECT_THAT(cache->ReadRows(3, 1, Kv::kK, 0, 1, rows.data(), 256).message(), HasSubstr("the cache has 1"));
  EXPECT_THAT(cache->ReadRows(3, 0, Kv::kK, -1, 1, rows.data(), 256).message(), HasSubstr("not there"));
  model.config.memory = MakeCacheMemory(1000);
  model.config.byte_budget = 2000;
  EXPECT_THAT(KvCache::Create(model.config).status().message(), HasSubstr("2000"));
  model.config.byte_budget = 0;
  model.config.first_layer = -1;
  EXPECT_THAT(KvCache::Create(model.config).status().message(), HasSubstr("first_layer"));
}

}  // namespace
}  // namespace tersekv
