// SPDX-License-Identifier: Apache-2.0
// The flow against a host whose KL is a known function of the bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "src/calibration/allocate.h"
#include "src/calibration/distortion.h"
#include "tersekv/calibration.h"
#include "tests/calibration/made_model.h"

namespace tersekv {
namespace {

using ::testing::HasSubstr;

// KL = x^power + coupling * (K's share) * (V's share), x = sum of weight * D(bits).
class MadeHost : public CalibrationHost {
 public:
  MadeHost(std::vector<LayerShape> layers, double power, double coupling)
      : layers_(std::move(layers)), power_(power), coupling_(coupling) {
    reference::Random random(21);
    for (size_t u = 0; u < 2 * layers_.size(); ++u) {
      weights_.push_back(.3 * std::exp(1.2 * random.Gaussian()) * (u % 2 == 0 ? 4 : 1));
    }
  }

  ModelIdentity model() const override { return {"made", "f00d", layers_}; }
  ChannelOrder channel_order() const override { return ChannelOrder::kHalf; }
  Status CollectStatistics(StatisticsSink* sink) override {
    return testing::Feed(testing::MakeRows(layers_, 256, 33), 64, 2, sink);
  }
  Status UseProfile(const Profile& profile) override {
    used_ = profile;
    return {};
  }
  Result<double> MeasureKl(std::span<const LayerBits> bits) override {
    ++runs_;
    if (runs_ == fail_at_) return Internal("the engine stopped");
    return Kl(bits);
  }

  double Kl(std::span<const LayerBits> bits) const {
    double share[2] = {0, 0};
    for (size_t l = 0; l < layers_.size(); ++l) {
      const int k = layers_[l].latent ? layers_[l].head_dim_v : layers_[l].head_dim_k;
      if (bits[l].k != kRawBits) share[0] += weights_[2 * l] * LloydMaxDistortion(bits[l].k, k);
      if (bits[l].v != kRawBits && !layers_[l].latent)
        share[1] += weights_[2 * l + 1] * LloydMaxDistortion(bits[l].v, layers_[l].head_dim_v);
    }
    return std::pow(share[0] + share[1], power_) + coupling_ * share[0] * share[1];
  }
  // The least KL within the budget, by trying everything.
  double Optimum(int64_t budget) const {
    double best = std::numeric_limits<double>::infinity();
    std::vector<LayerBits> bits(layers_.size());
    Try(0, budget, &bits, &best);
    return best;
  }

  int fail_at_ = -1, runs_ = 0;
  Profile used_;

 private:
  void Try(size_t unit, int64_t left, std::vector<LayerBits>* bits, double* best) const {
    if (unit == 2 * layers_.size()) {
      *best = std::min(*best, Kl(*bits));
      return;
    }
    const Kv side = unit % 2 == 0 ? Kv::kK : Kv::kV;
    for (int b = 2; b <= 8; ++b) {
      const int64_t bytes = SideBytesPerToken(layers_[unit / 2], side, b);
      if (bytes > left) break;
      (side == Kv::kK ? (*bits)[unit / 2].k : (*bits)[unit / 2].v) = b;
      Try(unit + 1, left - bytes, bits, best);
    }
  }

  std::vector<LayerShape> layers_;
  double power_, coupling_;
  std::vector<double> weights_;
};

const std::vector<LayerShape> kLayers = {{4, 2, 64, 64}, {4, 2, 64, 64}, {4, 1, 128, 64}};

TEST(Calibrate, FindsTheOptimumOfAnAdditiveModel) {
  MadeHost host(kLayers, 1, 0);
  const Result<Profile> profile = Calibrate({}, &host, nullptr);
  ASSERT_TRUE(profile) << profile.status().ToString();
  ASSERT_TRUE(ValidateProfile(*profile).ok()) << ValidateProfile(*profile).ToString();
  EXPECT_EQ(profile->model_name, "made");
  EXPECT_EQ(profile->model_fingerprint, "f00d");
  EXPECT_EQ(profile->channel_order, ChannelOrder::kHalf);
  EXPECT_EQ(profile->tokens, 256);
  EXPECT_EQ(profile->sensitivities.size(), 6U);
  EXPECT_TRUE(host.used_.layers == profile->layers);
  ASSERT_EQ(profile->byte_budget_table.size(), 8U);
  for (const BudgetEntry& entry : profile->byte_budget_table) {
    const int64_t budget = *UniformBytesPerToken(kLayers, entry.bits);
    EXPECT_LE(entry.bytes_per_token, budget);
    EXPECT_NEAR(*entry.measured_kl / host.Optimum(budget), 1, 1e-9) << entry.bits;
    EXPECT_NEAR(entry.predicted_kl / *entry.measured_kl, 1, 1e-9) << entry.bits;
  }
}

// Its V would otherwise be measured, and take bytes of the budget that no page has.
TEST(Calibrate, ALatentIsOneUnit) {
  const LayerShape latent = {.heads = 4, .kv_heads = 1, .head_dim_k = 96, .head_dim_v = 64, .latent = true};
  const std::vector<LayerShape> layers = {latent, {4, 2, 64, 64}, latent};
  MadeHost host(layers, 1, 0);
  const Result<Profile> profile = Calibrate({}, &host, nullptr);
  ASSERT_TRUE(profile) << profile.status().ToString();
  ASSERT_TRUE(ValidateProfile(*profile).ok()) << ValidateProfile(*profile).ToString();
  for (const BudgetEntry& entry : profile->byte_budget_table) {
    const int64_t budget = *UniformBytesPerToken(layers, entry.bits);
    EXPECT_LE(entry.bytes_per_token, budget);
    EXPECT_NEAR(*entry.measured_kl / host.Optimum(budget), 1, 1e-9) << entry.bits;
    for (const size_t l : {0, 2}) EXPECT_EQ(entry.v_bits[l], entry.k_bits[l]) << entry.bits;
  }
  EXPECT_LE(host.runs_, 1 + 4 * 2 + 5 * 8);
  for (const ProfileLayer& layer : profile->layers) EXPECT_FALSE(layer.shape.latent);
}

TEST(Calibrate, StaysNearTheOptimumWhenKlDoesNotQuiteAdd) {
  for (const auto& [power, coupling] : {std::pair(1.1, 0.0), std::pair(.9, 0.0), std::pair(1.0, .5)}) {
    MadeHost host(kLayers, power, coupling);
    const Result<Profile> profile = Calibrate({}, &host, nullptr);
    ASSERT_TRUE(profile) << profile.status().ToString();
    for (const BudgetEntry& entry : profile->byte_budget_table) {
      const int64_t budget = *UniformBytesPerToken(kLayers, entry.bits);
      const double gap = *entry.measured_kl / host.Optimum(budget) - 1;
      std::printf("power %.1f coupling %.1f bits %.1f: +%.3f%% over the optimum\n", power, coupling, entry.bits,
                  100 * gap);
      EXPECT_GE(gap, -1e-9);
      EXPECT_LE(gap, .03) << power << " " << coupling << " " << entry.bits;
      if (entry.bits == std::floor(entry.bits)) {
        const int b = static_cast<int>(entry.bits);
        EXPECT_LE(*entry.measured_kl, host.Kl(std::vector<LayerBits>(3, {b, b})));
      }
    }
  }
}

TEST(Calibrate, ReportsProgress) {
  MadeHost host(kLayers, 1.1, 0);
  std::vector<CalibrationProgress> seen;
  CalibrationOptions options;
  options.bits = {4, 3, 4};
  const auto profile = Calibrate(options, &host, [&](const CalibrationProgress& p) { seen.push_back(p); });
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->byte_budget_table.size(), 2U);
  ASSERT_GE(seen.size(), 14U);
  EXPECT_EQ(seen[0].what, "statistics");
  EXPECT_EQ(seen[1].what, "layer 0 K at 2 bits");
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].done, seen[i - 1].done);
  EXPECT_EQ(seen.back().done, seen.back().total);
  EXPECT_LE(host.runs_, seen.back().total - 1);
}

TEST(Calibrate, ErrorsComeBack) {
  const auto message = [](auto change) {
    CalibrationOptions options;
    change(&options);
    MadeHost host(kLayers, 1, 0);
    const Result<Profile> profile = Calibrate(options, &host, nullptr);
    EXPECT_EQ(host.runs_, 0);  // before anything runs
    return profile ? std::string("made") : profile.error().ToString();
  };
  EXPECT_THAT(message([](auto* o) { o->bits = {1.5}; }), HasSubstr("1.5"));
  EXPECT_THAT(message([](auto* o) { o->anchors = {3, 3}; }), HasSubstr("anchors"));
  EXPECT_THAT(message([](auto* o) { o->anchors = {3, 9}; }), HasSubstr("9"));
  EXPECT_THAT(message([](auto* o) { o->protect_first = 3; }), HasSubstr("2.5 bits: "));
  MadeHost host(kLayers, 1, 0);
  host.fail_at_ = 5;
  EXPECT_THAT(Calibrate({}, &host, nullptr).status().message(), HasSubstr("the engine stopped"));
}

TEST(Calibrate, ProtectsLayers) {
  MadeHost host(kLayers, 1, 0);
  CalibrationOptions options;
  options.bits = {6};
  options.protect_first = 1;
  const Result<Profile> profile = Calibrate(options, &host, nullptr);
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->byte_budget_table[0].k_bits[0], 8);
  EXPECT_EQ(profile->byte_budget_table[0].v_bits[0], 8);
}

}  // namespace
}  // namespace tersekv
