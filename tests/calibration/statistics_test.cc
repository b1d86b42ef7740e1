// SPDX-License-Identifier: Apache-2.0
// From rows to the statistics of a profile, and the identities that make them free at decode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/calibration/collector.h"
#include "tersekv/calibration.h"
#include "tests/calibration/made_model.h"

namespace tersekv {
namespace {

using testing::Feed;
using ::testing::HasSubstr;
using testing::MadeRows;
using testing::MakeRows;
using testing::StatisticsOf;

const std::vector<LayerShape> kLayers = {{4, 2, 16, 12}, {2, 2, 8, 8}};

double At(const std::vector<float>& values, size_t i) { return static_cast<double>(values[i]); }

TEST(Statistics, EqualThePlainOnes) {
  const MadeRows made = MakeRows(kLayers, 300, 1);
  const Profile profile = StatisticsOf(made);
  ASSERT_EQ(profile.layers.size(), 2U);
  EXPECT_EQ(profile.tokens, 300);
  const ProfileLayer& layer = profile.layers[0];
  const size_t d = 16, n = 300 - kLeadPositions;
  for (size_t h = 0; h < 2; ++h) {
    double log_scale = 0, largest = 0;
    std::vector<double> want(d);
    for (size_t c = 0; c < d; ++c) {
      double mean = 0, var = 0, square = 0;
      for (size_t t = kLeadPositions; t < 300; ++t) mean += At(made.k[0], (t * 2 + h) * d + c) / n;
      for (size_t t = kLeadPositions; t < 300; ++t) {
        var += std::pow(At(made.k[0], (t * 2 + h) * d + c) - mean, 2) / n;
        for (size_t g = 0; g < 2; ++g) square += std::pow(At(made.q[0], (t * 4 + h * 2 + g) * d + c), 2) / (2 * n);
      }
      EXPECT_NEAR(At(layer.k.mean, h * d + c), mean, 1e-6);
      EXPECT_NEAR(At(layer.k.variance, h * d + c), var, 1e-5);
      EXPECT_NEAR(At(layer.query_square, h * d + c), square, 1e-5);
      want[c] = std::pow(var / square, .25);
      largest = std::max(largest, want[c]);
    }
    for (double& w : want) log_scale += std::log(w = std::max(w, 1e-3 * largest)) / d;
    for (size_t c = 0; c < d; ++c) {
      EXPECT_NEAR(At(layer.k.scale, h * d + c), want[c] / std::exp(log_scale), 1e-5);
    }
  }
  EXPECT_NEAR(At(layer.v.scale, 0) / At(layer.v.scale, 1), 2, .3);  // sqrt of deviations 4 and 1
  EXPECT_FLOAT_EQ(layer.attention_scale, .25F);
  EXPECT_GT(layer.attention_peak, 0);
  EXPECT_NEAR(At({layer.attention_peak}, 0) + At({layer.attention_spread}, 0), 1, 1e-5);  // no learned sinks
}

TEST(Statistics, AnyCutAndAnyWorkersGiveTheSameBits) {
  const MadeRows made = MakeRows(kLayers, 200, 2);
  const Profile one = StatisticsOf(made, 200, 1);
  for (const int step : {1, 7, 64}) EXPECT_TRUE(StatisticsOf(made, step, 3) == one) << step;
}

TEST(Statistics, MergeAddsContexts) {
  const MadeRows a = MakeRows(kLayers, 150, 3), b = MakeRows(kLayers, 220, 4);
  const auto both = StatisticsCollector::Create(kLayers), first = StatisticsCollector::Create(kLayers),
             second = StatisticsCollector::Create(kLayers);
  ASSERT_TRUE(Feed(a, 64, 1, both->get()).ok() && Feed(b, 64, 1, both->get()).ok());
  ASSERT_TRUE(Feed(a, 64, 1, first->get()).ok() && Feed(b, 64, 1, second->get()).ok());
  ASSERT_TRUE((*first)->Merge(**second).ok());
  Profile whole, merged;
  ASSERT_TRUE((*both)->MakeStatistics({}, &whole).ok() && (*first)->MakeStatistics({}, &merged).ok());
  EXPECT_EQ(merged.tokens, 370);
  EXPECT_EQ(merged.sink_tokens, whole.sink_tokens);
  for (size_t l = 0; l < kLayers.size(); ++l) {
    for (size_t i = 0; i < whole.layers[l].k.mean.size(); ++i) {
      EXPECT_NEAR(At(merged.layers[l].k.mean, i), At(whole.layers[l].k.mean, i), 1e-6);
      EXPECT_NEAR(At(merged.layers[l].k.scale, i), At(whole.layers[l].k.scale, i), 1e-5);
    }
    EXPECT_NEAR(At({merged.layers[l].attention_peak}, 0), At({whole.layers[l].attention_peak}, 0), 1e-6);
  }
  EXPECT_FALSE((*first)->Merge(**StatisticsCollector::Create({{1, 1, 8, 8}})).ok());
  EXPECT_FALSE((*first)->Merge(**first).ok());
}

TEST(Statistics, FindsSinks) {
  const std::vector<LayerShape> layers = {{4, 2, 64, 16}, {4, 2, 64, 16}};
  EXPECT_EQ(StatisticsOf(MakeRows(layers, 400, 5, 5, 20)).sink_tokens, 1);
  EXPECT_EQ(StatisticsOf(MakeRows(layers, 400, 5, 5, 1)).sink_tokens, 0);
  MadeRows made = MakeRows(layers, 400, 6, 0, 1);
  for (size_t i = 3 * 128; i < 4 * 128; ++i) made.k[0][i] *= 8;  // position 3 of one layer
  const Profile profile = StatisticsOf(made);
  EXPECT_EQ(profile.sink_tokens, 4);
  EXPECT_GT(profile.layers[0].sink_ratio[3], 30);
  EXPECT_LT(profile.layers[0].sink_ratio[9], 2);
}

TEST(Statistics, Errors) {
  const auto collector = StatisticsCollector::Create(kLayers);
  Profile profile;
  EXPECT_THAT((*collector)->MakeStatistics({}, &profile).message(), HasSubstr("longer text"));
  EXPECT_FALSE((*collector)->BeginStep(std::vector<StepToken>{{0, 5}}).ok());
  EXPECT_FALSE((*collector)->BeginStep(std::vector<StepToken>{{0, 0}, {1, 1}}).ok());
  EXPECT_FALSE((*collector)->BeginStep({}).ok());
  MadeRows made = MakeRows(kLayers, 100, 7);
  made.v[1][50 * 16] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(Feed(made, 50, 1, collector->get()).ok());
  const Status status = (*collector)->MakeStatistics({}, &profile);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("layer 1"));
  EXPECT_FALSE((*collector)->MakeStatistics({{1.F}}, &profile).ok());
  EXPECT_FALSE(StatisticsCollector::Create({}));
  EXPECT_FALSE(StatisticsCollector::Create({{3, 2, 8, 8}}));
}

TEST(BalancedScale, FloorsAndDegenerateChannels) {
  const double variance[] = {0, 1, 1e6, 4}, weight[] = {1, 0, 1, 4};
  float scale[4];
  BalancedScale(variance, weight, 4, scale);
  EXPECT_NEAR(static_cast<double>(scale[0] / scale[2]), 1e-3, 1e-6);  // constant channel: the floor
  double product = 1;
  for (const float s : scale) product *= static_cast<double>(s);
  EXPECT_NEAR(product, 1, 1e-5);
  const double zero[] = {0, 0, 0, 0};
  BalancedScale(zero, weight, 4, scale);
  EXPECT_EQ(scale[2], 1);
  BalancedScale(variance + 1, nullptr, 3, scale);  // no weights: sqrt of the deviation
  EXPECT_NEAR(static_cast<double>(scale[1] / scale[0]), std::sqrt(1e3), 1e-3);
}

// E|S^-1(k - mean)|^2 E|Sq|^2 = (sum sqrt(Var k E q^2))^2, and no other diagonal does better.
TEST(BalancedScale, MakesTheLogitErrorLeast) {
  reference::Random random(8);
  constexpr size_t d = 32;
  double variance[d], weight[d];
  for (size_t c = 0; c < d; ++c) variance[c] = std::exp(random.Gaussian()), weight[c] = std::exp(random.Gaussian());
  float scale[d];
  BalancedScale(variance, weight, d, scale);
  const auto error = [&](const std::vector<double>& s) {
    double key = 0, query = 0;
    for (size_t c = 0; c < d; ++c) key += variance[c] / (s[c] * s[c]), query += weight[c] * s[c] * s[c];
    return key * query;
  };
  const std::vector<double> best(scale, scale + d);
  double root = 0;
  for (size_t c = 0; c < d; ++c) root += std::sqrt(variance[c] * weight[c]);
  EXPECT_NEAR(error(best) / (root * root), 1, 1e-6);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> other = best;
    for (double& s : other) s *= std::exp(.1 * random.Gaussian());
    EXPECT_GT(error(other), error(best));
  }
}

// <q, k> = <S q, S^-1 (k - mean)> + <q, mean>: the first term is what packed tokens give, the second is the same for
// all of them; raw tokens carry -<q, mean>. Values: o = S_v sum p v' + mean_v l_packed + sum of raw p v, over l.
TEST(Identities, FoldIntoQueryAndOutput) {
  const MadeRows made = MakeRows({{1, 1, 16, 12}}, 120, 9);
  const ProfileLayer layer = StatisticsOf(made).layers[0];
  const size_t dk = 16, dv = 12, raw = 30;  // the first `raw` tokens stay raw
  const float* q = made.q[0].data() + 119 * dk;
  double q_mean = 0;
  for (size_t c = 0; c < dk; ++c) q_mean += static_cast<double>(q[c]) * At(layer.k.mean, c);
  std::vector<double> plain(dv), folded(dv), packed(dv);
  double plain_sum = 0, sum = 0, packed_sum = 0;
  for (size_t t = 0; t < 120; ++t) {
    double score = 0, packed_score = 0;
    for (size_t c = 0; c < dk; ++c) {
      const double s = At(layer.k.scale, c), k = At(made.k[0], t * dk + c);
      score += static_cast<double>(q[c]) * k;
      packed_score += static_cast<double>(q[c]) * s * ((k - At(layer.k.mean, c)) / s);
    }
    EXPECT_NEAR(packed_score + q_mean, score, 1e-9 * (1 + std::abs(score)));
    const double p = std::exp(.25 * score), p_folded = std::exp(.25 * (t < raw ? score - q_mean : packed_score));
    plain_sum += p;
    sum += p_folded;
    if (t >= raw) packed_sum += p_folded;
    for (size_t c = 0; c < dv; ++c) {
      const double v = At(made.v[0], t * dv + c);
      plain[c] += p * v;
      (t < raw ? folded : packed)[c] += p_folded * (t < raw ? v : (v - At(layer.v.mean, c)) / At(layer.v.scale, c));
    }
  }
  for (size_t c = 0; c < dv; ++c) {
    const double out = (At(layer.v.scale, c) * packed[c] + At(layer.v.mean, c) * packed_sum + folded[c]) / sum;
    EXPECT_NEAR(out, plain[c] / plain_sum, 1e-9) << c;
  }
}

}  // namespace
}  // namespace tersekv
