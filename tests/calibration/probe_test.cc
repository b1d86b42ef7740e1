// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/calibration/distortion.h"
#include "tersekv/calibration.h"
#include "tests/calibration/made_model.h"

namespace tersekv {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// One head of 64 channels; keys and values of variance 1, queries of square `query`, attention over a few tokens.
Profile Plain(float key_mean, float query) {
  Profile profile;
  profile.model_name = "plain";
  ProfileLayer& layer = profile.layers.emplace_back();
  layer.shape = {2, 1, 64, 64};
  layer.k = {std::vector<float>(64, key_mean), std::vector<float>(64, 1), std::vector<float>(64, 1)};
  layer.v = {std::vector<float>(64, 0), std::vector<float>(64, 1), std::vector<float>(64, 4)};
  layer.query_square.assign(64, query);
  layer.attention_scale = .125F;
  layer.attention_spread = .75F;
  layer.attention_peak = .25F;
  return profile;
}

TEST(Probe, KnownFigures) {
  const Result<ProbeReport> report = Probe(Plain(3, 2));
  ASSERT_TRUE(report) << report.status().ToString();
  const ProbeLayer& layer = report->layers[0];
  EXPECT_NEAR(layer.kv_norm_ratio, std::sqrt(10.0 / 4), 1e-6);
  EXPECT_NEAR(layer.k_uncentred, 10, 1e-6);
  EXPECT_NEAR(layer.k_mean_gain_db, 10, 1e-6);
  EXPECT_NEAR(layer.k_scale_gain_db, 0, 1e-6);
  EXPECT_NEAR(layer.v_uncentred, 1, 1e-6);
  ASSERT_EQ(report->specs.size(), 28U);
  for (const ProbeSpec& spec : report->specs) {
    if (spec.spec != "k4v3") continue;
    // tau^2 D / 2d * spread * E|k'|^2 * E|Sq|^2 = 1/64 * D / 128 * .75 * 64 * 128
    EXPECT_NEAR(spec.k_kl[0], .75 * LloydMaxDistortion(4, 64), 1e-7);
    EXPECT_NEAR(spec.k_kl_mean_off / spec.k_kl_mean, 10, 1e-6);
    EXPECT_NEAR(spec.v_error[0], LloydMaxDistortion(3, 64), 1e-6);  // no mean: the codec's own
    EXPECT_EQ(spec.bits, 3.5);
  }
}

TEST(Probe, AdvisesByTheKeys) {
  const Result<ProbeReport> easy = Probe(Plain(0, 1)), hard = Probe(Plain(30, 40));
  ASSERT_EQ(easy->advice.size(), 2U);
  EXPECT_EQ(easy->advice[0].mode, "quality");
  EXPECT_EQ(easy->advice[0].spec, "k4v4");
  EXPECT_EQ(easy->advice[1].spec, "k3v3");
  EXPECT_THAT(easy->advice[0].reasons, Not(Contains(HasSubstr("constant"))));
  EXPECT_EQ(hard->advice[0].spec, "k6v4");
  EXPECT_THAT(hard->advice[0].reasons, Contains(HasSubstr("constant")));
  for (const ProbeAdvice& advice : hard->advice) {
    EXPECT_TRUE(ParseSpec(advice.spec)) << advice.spec;
    EXPECT_GE(advice.reasons.size(), 2U);
  }
}

TEST(Probe, SaysWhenNothingIsGoodEnough) {
  const Result<ProbeReport> report = Probe(Plain(0, 1e5F));
  EXPECT_EQ(report->advice[0].spec, "k8v8");
  EXPECT_THAT(report->advice[0].reasons[0], HasSubstr("no width"));
}

TEST(Probe, SinksBeyondTheDefaultGoIntoTheSpec) {
  Profile profile = Plain(0, 1);
  profile.sink_tokens = 6;
  const Result<ProbeReport> report = Probe(profile);
  EXPECT_THAT(report->advice[0].spec, HasSubstr("+sink=6"));
  EXPECT_THAT(report->advice[0].reasons.back(), HasSubstr("sink=6"));
}

TEST(Probe, NeedsAttention) {
  Profile profile = Plain(0, 1);
  profile.layers[0].attention_peak = 0;
  EXPECT_THAT(Probe(profile).status().message(), HasSubstr("plain"));
}

TEST(Probe, OfCollectedStatistics) {
  const Profile profile = testing::StatisticsOf(testing::MakeRows({{4, 2, 64, 64}, {4, 2, 64, 64}}, 400, 3));
  const Result<ProbeReport> report = Probe(profile);
  ASSERT_TRUE(report) << report.status().ToString();
  EXPECT_GT(report->layers[0].k_scale_gain_db, .5);
  EXPECT_LT(report->specs.back().k_kl_mean, report->specs.front().k_kl_mean);
}

}  // namespace
}  // namespace tersekv
