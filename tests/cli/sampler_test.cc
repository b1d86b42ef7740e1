// SPDX-License-Identifier: Apache-2.0
#include "cli/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tersekv::cli {
namespace {

std::vector<double> Shares(const SamplerOptions& options, const std::vector<float>& logits, int n = 40000) {
  Sampler sampler(options);
  std::vector<double> counts(logits.size());
  for (int i = 0; i < n; ++i) ++counts[static_cast<size_t>(sampler.Sample(logits))];
  for (double& count : counts) count /= n;
  return counts;
}

TEST(Sampler, GreedyTakesTheFirstMaximum) {
  Sampler sampler({});
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, 5, 5, 2}), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{-3}), 0);
}

TEST(Sampler, SkipsWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const double temp : {0.0, 1.0}) {
    SamplerOptions options;
    options.temp = temp;
    Sampler sampler(options);
    EXPECT_EQ(sampler.Sample(std::vector<float>{nan, -inf, 3, inf}), 2);
    EXPECT_EQ(sampler.Sample(std::vector<float>{nan, nan}), -1);
    EXPECT_EQ(sampler.Sample({}), -1);
  }
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  const auto shares = Shares({1.0, 0, 1.0, 7}, logits);
  EXPECT_NEAR(shares[0], 0.125, 0.01);
  EXPECT_NEAR(shares[1], 0.25, 0.01);
  EXPECT_NEAR(shares[2], 0.625, 0.01);
  const auto sharp = Shares({0.5, 0, 1.0, 7}, logits);  // weights are squared: 1, 4, 25
  EXPECT_NEAR(sharp[2], 25.0 / 30, 0.01);
}

TEST(Sampler, TopKAndTopP) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  const auto two = Shares({1.0, 2, 1.0, 1}, logits);
  EXPECT_EQ(two[0], 0);
  EXPECT_NEAR(two[1], 2.0 / 7, 0.01);
  const auto one = Shares({1.0, 0, 0.6, 1}, logits);  // 0.625 reaches 0.6
  EXPECT_EQ(one[2], 1.0);
  const auto both = Shares({1.0, 0, 0.7, 1}, logits);
  EXPECT_EQ(both[0], 0);
  EXPECT_GT(both[1], 0.2);
  EXPECT_EQ(Shares({1.0, 0, 0.0, 1}, logits)[2], 1.0);
}

TEST(Sampler, SameSeedSameTokens) {
  const std::vector<float> logits(1000, 0.25f);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler({0.8, 0, 1.0, seed});
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler.Sample(logits));
    return tokens;
  };
  EXPECT_EQ(draw(3), draw(3));
  EXPECT_NE(draw(3), draw(4));
}

}  // namespace
}  // namespace tersekv::cli
