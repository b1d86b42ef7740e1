// SPDX-License-Identifier: Apache-2.0
// Layers whose values are a part of their keys (MLA): kept once, attended as keys and as values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/session.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::LayerResult;
using reference::Model;
using reference::RunStep;
using reference::StepResult;
using reference::Token;
using reference::TokenRun;
using ::testing::HasSubstr;

constexpr double kTolerance = 2e-5;

LayerShape Latent(int heads, int latent, int rotary) { return {heads, 1, latent + rotary, latent, true}; }
const std::vector<LayerShape> kLayers = {Latent(8, 48, 16), Latent(3, 64, 4), {2, 1, 32, 32}};

Model MakeModel(const std::string& spec, const std::vector<LayerShape>& layers = kLayers) {
  Model model = reference::MakeModel(spec, layers, 2);
  model.config.arithmetic = Arithmetic::kExact;
  model.config.rollback = 3;
  return model;
}

std::vector<float> Rows(const KvCache& cache, int layer, Kv side) {
  const LayerShape& shape = cache.config().layers[static_cast<size_t>(layer)];
  const size_t d = static_cast<size_t>(side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
  std::vector<float> rows(static_cast<size_t>(cache.Length(0)) * d);
  const Status status =
      cache.ReadRows(0, layer, side, 0, cache.Length(0), rows.data(), static_cast<ptrdiff_t>(d * sizeof(float)));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return rows;
}

// The step of the newest token in double precision, from what the cache says it holds.
void ExpectPlain(const KvCache& cache, const Model& model, const Token& token, const StepResult& result) {
  for (size_t l = 0; l < model.config.layers.size(); ++l) {
    const LayerShape& shape = model.config.layers[l];
    const int layer = static_cast<int>(l);
    const size_t dk = static_cast<size_t>(shape.head_dim_k), dv = static_cast<size_t>(shape.head_dim_v);
    const std::vector<float> k = Rows(cache, layer, Kv::kK), v = Rows(cache, layer, Kv::kV);
    const std::vector<float> q = model.Q(layer, token.content);
    const size_t n = static_cast<size_t>(cache.Length(0)), heads = static_cast<size_t>(shape.heads);
    for (size_t t = 0; t < n && shape.latent; ++t) {
      ASSERT_TRUE(std::equal(&v[t * dv], &v[t * dv] + dv, &k[t * dk])) << "token " << t << " of layer " << l;
    }
    for (size_t h = 0; h < heads; ++h) {
      std::vector<double> weight(n);
      double most = -INFINITY, sum = 0;
      for (size_t t = 0; t < n; ++t) {
        double dot = 0;
        for (size_t c = 0; c < dk; ++c) dot += double{q[h * dk + c]} * k[t * dk + c];
        weight[t] = dot * model.params.scale;
        most = std::max(most, weight[t]);
      }
      for (double& w : weight) sum += w = std::exp(w - most);
      std::vector<double> out(dv);
      double largest = 0, worst = 0;
      for (size_t c = 0; c < dv; ++c) {
        for (size_t t = 0; t < n; ++t) out[c] += weight[t] / sum * v[t * dv + c];
        largest = std::max(largest, std::fabs(out[c]));
        worst = std::max(worst, std::fabs(out[c] - result[l].out[h * dv + c]));
      }
      EXPECT_LE(worst, kTolerance * largest) << "head " << h << " of layer " << l;
      EXPECT_NEAR(result[l].lse[h], most + std::log(sum), 2e-5 * std::max(1.0, std::fabs(most)));
    }
  }
}

class Latents : public ::testing::TestWithParam<const char*> {
 protected:
  Latents() : model_(MakeModel(GetParam())), cache_(reference::MakeCache(model_)) {}
  void StepAndCompare() {
    const int32_t position = cache_->LastPosition(0) + 1;
    const Token token = {0, position, static_cast<uint64_t>(90000 + position)};
    ExpectPlain(*cache_, model_, token, RunStep(cache_.get(), model_, {token}));
  }
  std::vector<KeyRotation> Rotations() const {
    std::vector<KeyRotation> rotations;
    for (const LayerShape& shape : model_.config.layers) {
      KeyRotation& rotation = rotations.emplace_back();
      const int channels = shape.latent ? shape.head_dim_k - shape.head_dim_v : 16;
      rotation.frequency = RopeFrequencies({.channels = channels, .base = 100});
      rotation.first_channel = shape.latent ? shape.head_dim_v : 0;
      rotation.interleaved = channels == 4;
    }
    return rotations;
  }

  Model model_;
  std::unique_ptr<KvCache> cache_;
};

TEST_P(Latents, EqualPlainAttention) {
  const std::vector<Token> prompt = TokenRun(0, 0, 330);
  const StepResult at_once = RunStep(cache_.get(), model_, prompt, 2);
  auto other = reference::MakeCache(model_);
  EXPECT_TRUE(at_once == reference::RunInSteps(other.get(), model_, prompt, {1})) << "a prompt and its tokens";
  StepAndCompare();
  ASSERT_TRUE(cache_->RemoveRange(0, 40, 200).ok());
  StepAndCompare();
  ASSERT_TRUE(cache_->Truncate(0, cache_->Length(0) - 3).ok());
  StepAndCompare();
  ASSERT_TRUE(cache_->Fork(0, 1).ok());
  StepAndCompare();
  ASSERT_TRUE(cache_->Truncate(0, 150).ok());
  for (int i = 0; i < 70; ++i) StepAndCompare();
  cache_->Remove(0);
  cache_->Remove(1);
  EXPECT_EQ(cache_->Usage().bytes_used, 0u);
}

TEST_P(Latents, ShiftsTurnTheRotaryPartAlone) {
  (void)RunStep(cache_.get(), model_, TokenRun(0, 0, 300));
  ASSERT_TRUE(cache_->Fork(0, 1).ok());
  std::vector<std::vector<float>> before;
  for (int l = 0; l < 2; ++l) before.push_back(Rows(*cache_, l, Kv::kK));
  const std::vector<KeyRotation> rotations = Rotations();
  const Status shifted = cache_->Shift(0, 10, -1, 25, rotations);
  ASSERT_TRUE(shifted.ok()) << shifted.ToString();
  const double coarse = std::string(GetParam()) == "f32" ? 1e-6 : std::string(GetParam()) == "bf16" ? 1e-2 : 1e-3;
  for (int l = 0; l < 2; ++l) {
    const size_t dk = static_cast<size_t>(kLayers[static_cast<size_t>(l)].head_dim_k);
    const size_t dv = static_cast<size_t>(kLayers[static_cast<size_t>(l)].head_dim_v), pairs = (dk - dv) / 2;
    const std::vector<float> after = Rows(*cache_, l, Kv::kK);
    const KeyRotation& rotation = rotations[static_cast<size_t>(l)];
    for (size_t t = 0; t < 300; ++t) {
      const float* from = &before[static_cast<size_t>(l)][t * dk];
      ASSERT_TRUE(std::equal(from, from + dv, &after[t * dk])) << t;
      for (size_t i = 0; i < pairs; ++i) {
        const size_t a = dv + (rotation.interleaved ? 2 * i : i), b = a + (rotation.interleaved ? 1 : pairs);
        const double angle = t < 10 ? 0 : 25 * rotation.frequency[i], x = from[a], y = from[b];
        const double limit = coarse * (std::fabs(x) + std::fabs(y));
        ASSERT_NEAR(after[t * dk + a], x * std::cos(angle) - y * std::sin(angle), limit) << t;
        ASSERT_NEAR(after[t * dk + b], x * std::sin(angle) + y * std::cos(angle), limit) << t;
      }
    }
  }
  StepAndCompare();
  KeyRotation wrong = rotations[0];
  wrong.first_channel = 40;
  EXPECT_THAT(cache_->Shift(0, 10, -1, 5, {&wrong, 1}).message(), HasSubstr("behind its latent"));
}

TEST_P(Latents, SessionsGoOnBitForBit) {
  (void)RunStep(cache_.get(), model_, TokenRun(0, 0, 300));
  const std::vector<int32_t> tokens(300, 1);
  const Result<std::string> bytes = SerializeSession(*cache_, 0, tokens, {"m", "f", {}});
  ASSERT_TRUE(bytes) << bytes.status().ToString();
  const Result<SavedSession> saved = ParseSession(*bytes, "it");
  ASSERT_TRUE(saved) << saved.status().ToString();
  auto other = reference::MakeCache(model_);
  const Status restored = RestoreSession(*saved, {"m", "f", {}}, other.get(), 0);
  ASSERT_TRUE(restored.ok()) << restored.ToString();
  EXPECT_EQ(other->Usage().bytes_used, cache_->Usage().bytes_used);
  EXPECT_TRUE(RunStep(cache_.get(), model_, TokenRun(0, 300, 80)) ==
              RunStep(other.get(), model_, TokenRun(0, 300, 80)));
  Model twice = model_;
  twice.config.layers[0].latent = false;
  const Status refused = RestoreSession(*saved, {"m", "f", {}}, reference::MakeCache(twice).get(), 0);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("a latent kept once"));
}

INSTANTIATE_TEST_SUITE_P(Specs, Latents,
                         ::testing::Values("f32", "f16", "bf16", "k8v8", "k4v4", "k8v2+sink=0+win=0", "k5v3+rot=h2",
                                           "k2v4+rot=none+mean=off+scale=off+win=9", "k6v6+page=128+rot=haar"));

// DeepSeek-V2's layer: 512 + 64 channels. What k8v8 and k4v4 take of it, to the byte.
TEST(Latent, Bytes) {
  for (const int bits : {4, 8}) {
    Model model = MakeModel(bits == 4 ? "k4v4" : "k8v8", {Latent(16, 512, 64)});
    model.config.rollback = 0;
    auto cache = reference::MakeCache(model);
    constexpr int kTokens = 4 + 128 + 5 * 64;
    (void)RunStep(cache.get(), model, TokenRun(0, 0, kTokens));
    const CacheUsage usage = cache->Usage();
    const size_t token = static_cast<size_t>(512 * bits / 8 + 2 + 64 * 2);
    EXPECT_EQ(usage.pages, 5u * 64 * token);
    EXPECT_EQ(usage.raw_rows, (4u + 128) * 576 * 2);
    EXPECT_EQ(usage.bytes_f16, size_t{kTokens} * 576 * 2);
    EXPECT_DOUBLE_EQ(BitsSpec(model.config), static_cast<double>(token) * 8 / 576);
    EXPECT_LT(FormulaBytes(model.config, 100000), 1.01 * 100000 * static_cast<double>(token + 5));
    CacheConfig twice = model.config;
    twice.layers[0].latent = false;
    const double ratio =
        static_cast<double>(FormulaBytes(model.config, 100000)) / static_cast<double>(FormulaBytes(twice, 100000));
    EXPECT_LT(ratio, bits == 4 ? 0.71 : 0.60);
  }
}

TEST(Latent, Refusals) {
  const auto why = [](const std::string& spec, const LayerShape& shape) {
    CacheConfig config;
    config.spec = ParseSpec(spec).value();
    config.layers = {shape};
    return KvCache::Create(config).status();
  };
  EXPECT_TRUE(why("k4v4", Latent(4, 64, 8)).ok());
  EXPECT_EQ(why("k4v4", {4, 2, 72, 64, true}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(why("k4v4", Latent(4, 64, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(why("kivi-k4v4", Latent(4, 64, 8)).message(), HasSubstr("kivi-k4v4"));
  EXPECT_EQ(why("k4v4+mean=page", Latent(4, 64, 8)).code(), StatusCode::kUnsupported);
  EXPECT_EQ(why("k3tv3t", Latent(4, 64, 8)).code(), StatusCode::kUnsupported);
  EXPECT_THAT(why("k4v4", Latent(4, 64, 6)).message(), HasSubstr("6 rotary channels"));
  EXPECT_TRUE(why("f32", Latent(4, 63, 6)).ok());
  EXPECT_EQ(why("k4v4", Latent(4, 72, 8)).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tersekv
