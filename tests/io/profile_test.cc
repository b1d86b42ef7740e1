// SPDX-License-Identifier: Apache-2.0
#include "tersekv/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/io/profiles.h"

namespace tersekv {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SmallProfile;

ModelIdentity ModelOf(const Profile& profile) {
  ModelIdentity model{profile.model_name, profile.model_fingerprint, {}};
  for (const ProfileLayer& layer : profile.layers) model.layers.push_back(layer.shape);
  return model;
}

TEST(Profile, OfAnotherModelIsRefusedByName) {
  Profile profile = SmallProfile();
  profile.model_name = "SmallModel";
  ModelIdentity model = ModelOf(profile);
  EXPECT_TRUE(CheckProfileModel(profile, model).ok());
  model.name = "another name of the same file";
  EXPECT_TRUE(CheckProfileModel(profile, model).ok());

  model.name = "OtherModel";
  model.fingerprint = "badcafe";
  Status status = CheckProfileModel(profile, model);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("SmallModel"), HasSubstr("OtherModel"), HasSubstr("00c0ffee"), HasSubstr("badcafe")));
  model = ModelOf(profile);
  model.layers[1].head_dim_v = 8;
  EXPECT_THAT(CheckProfileModel(profile, model).message(), AllOf(HasSubstr("layer 1"), HasSubstr("4 / 8")));
  model.layers.pop_back();
  EXPECT_THAT(CheckProfileModel(profile, model).message(), AllOf(HasSubstr("2 KV layers"), HasSubstr("has 1")));
}

TEST(Profile, ChannelOrderMovesPairs) {
  Profile profile = SmallProfile();
  profile.layers[1].k.mean = {0, 1, 2, 3};  // interleaved: pairs (0, 1) and (2, 3)
  const Profile before = profile;
  ConvertChannelOrder(ChannelOrder::kHalf, &profile);
  EXPECT_EQ(profile.channel_order, ChannelOrder::kHalf);
  EXPECT_THAT(profile.layers[1].k.mean, ElementsAre(0, 2, 1, 3));  // pairs (0, 2) and (1, 3)
  for (const size_t head : {0, 1}) {                               // each head by itself
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(profile.layers[0].query_square[8 * head + i], before.layers[0].query_square[8 * head + 2 * i]);
      EXPECT_EQ(profile.layers[0].k.scale[8 * head + i + 4], before.layers[0].k.scale[8 * head + 2 * i + 1]);
      EXPECT_EQ(profile.layers[0].k.variance[8 * head + i], before.layers[0].k.variance[8 * head + 2 * i]);
    }
  }
  EXPECT_TRUE(profile.layers[0].v == before.layers[0].v);  // values know no RoPE
  const Profile half = profile;
  ConvertChannelOrder(ChannelOrder::kHalf, &profile);
  EXPECT_TRUE(profile == half);
  ConvertChannelOrder(ChannelOrder::kInterleaved, &profile);
  EXPECT_TRUE(profile == before);
}

// Scores do not change when q, k and the statistics move together.
TEST(Profile, ChannelOrderKeepsScores) {
  Profile profile = SmallProfile();
  const size_t d = 8;
  const std::vector<float> q = testing::Ramp(d, -2, .7F), k = testing::Ramp(d, 1, -.4F);
  const auto moved = [&](const std::vector<float>& interleaved) {
    std::vector<float> half(d);
    for (size_t i = 0; i < d; ++i) half[i / 2 + i % 2 * (d / 2)] = interleaved[i];
    return half;
  };
  const auto centred = [&](const RowStats& s, const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> terms;
    for (size_t i = 0; i < d; ++i) terms.push_back(a[i] * s.scale[i] * ((b[i] - s.mean[i]) / s.scale[i]));
    double sum = 0;
    for (const float t : terms) sum += static_cast<double>(t);
    return sum;
  };
  const double before = centred(ProfileRowStats(profile, 0, Kv::kK, 1), q, k);
  ConvertChannelOrder(ChannelOrder::kHalf, &profile);
  EXPECT_NEAR(centred(ProfileRowStats(profile, 0, Kv::kK, 1), moved(q), moved(k)), before, 1e-5);
}

TEST(Profile, RowStatsOfAHead) {
  const Profile profile = SmallProfile();
  const RowStats stats = ProfileRowStats(profile, 0, Kv::kV, 1);
  EXPECT_EQ(stats.mean, std::vector<float>(profile.layers[0].v.mean.begin() + 6, profile.layers[0].v.mean.end()));
  EXPECT_EQ(stats.scale, std::vector<float>(profile.layers[0].v.scale.begin() + 6, profile.layers[0].v.scale.end()));
}

TEST(Profile, BudgetsAreLookedUp) {
  Profile profile = SmallProfile();
  const Result<BudgetEntry> four = FindBudget(profile, 4);
  ASSERT_TRUE(four);
  EXPECT_THAT(four->k_bits, ElementsAre(4, 5));
  const Status missing = FindBudget(profile, 3).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), AllOf(HasSubstr("3 bits"), HasSubstr("2.5, 4")));
  profile.byte_budget_table.clear();
  EXPECT_THAT(FindBudget(profile, 3).status().message(), HasSubstr("none"));

  const Result<KvSpec> base = ParseSpec("k4v4+sink=8");
  const std::vector<KvSpec> specs = LayerSpecs(*base, *four);
  ASSERT_EQ(specs.size(), 2U);
  EXPECT_EQ(FormatSpec(specs[1]), "k5v3+sink=8");
}

}  // namespace
}  // namespace tersekv
