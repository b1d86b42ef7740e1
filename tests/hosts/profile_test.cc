// SPDX-License-Identifier: Apache-2.0
// Profiles on sessions: whose they are, what they change, and the statistics that calibration reads through a session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tersekv/llama_calibration.h"
#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using ProfileOnMade = MadeModelTest;

std::string Other() { return RandomModel("llama", 8, 2, 64, "--embd 256 --seed 7"); }

std::string Text() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += fmt::format("line {} of {}: the keeper counts ships and wind. ", i, i * i % 97);
  return text;
}

CalibrationHostOptions HostOptions(const std::string& model) {
  CalibrationHostOptions options;
  options.model_path = model;
  options.text = Text();
  options.tokens = 600;
  options.context = 300;
  options.kl_contexts = 1;
  options.kl_context = 256;
  options.kl_scored = 64;
  options.threads = 1;
  return options;
}

Profile StatisticsOf(const std::string& model) {
  Profile profile;
  const auto host = MakeCalibrationHost(HostOptions(model));
  if (!host) {
    ADD_FAILURE() << host.error().ToString();
    return profile;
  }
  const auto collector = StatisticsCollector::Create((*host)->info().layers);
  EXPECT_TRUE((*host)->CollectStatistics(collector->get()).ok());
  EXPECT_TRUE((*collector)->MakeStatistics((*host)->OutputSquares(), &profile).ok());
  profile.tersekv_version = "test";
  profile.model_name = (*host)->model().name;
  profile.model_fingerprint = (*host)->model().fingerprint;
  profile.channel_order = (*host)->channel_order();
  return profile;
}

TEST_F(ProfileOnMade, FingerprintsTellWeightsApart) {
  const auto a = OpenOrFail(Options(SmallLlama(), "f16")), b = OpenOrFail(Options(Other(), "f16"));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->model().layers, b->model().layers);
  EXPECT_EQ(a->model().fingerprint.size(), 16u);
  EXPECT_NE(a->model().fingerprint, b->model().fingerprint);
  EXPECT_EQ(a->model().channel_order, ChannelOrder::kInterleaved);
  // A copy under another name is the same model.
  const std::string copy = TestModelPath("copy-of-small.gguf");
  std::filesystem::copy_file(SmallLlama(), copy, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(OpenOrFail(Options(copy, "f16"))->model().fingerprint, a->model().fingerprint);
  std::filesystem::remove(copy);
  const auto half = OpenOrFail(Options(RandomModel("qwen2", 6, 2, 64, ""), "f16"));
  ASSERT_TRUE(half);
  EXPECT_EQ(half->model().channel_order, ChannelOrder::kHalf);
}

TEST_F(ProfileOnMade, OfAnotherModelIsRefusedByName) {
  SessionOptions options = Options(Other(), "k4v4");
  const auto profile = std::make_shared<const Profile>(StatisticsOf(SmallLlama()));
  options.profile = profile;
  const auto session = Session::Open(options);
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(session.error().message(),
              AllOf(HasSubstr(profile->model_fingerprint), HasSubstr("random llama"), HasSubstr("calibrate")));
  options.profile = nullptr;
  for (const auto& [kv, words] :
       {std::pair("k4v4+mean=profile", "mean=profile"), std::pair("auto", "--auto-calibrate")}) {
    options.kv = kv;
    const auto without = Session::Open(options);
    ASSERT_FALSE(without);
    EXPECT_THAT(without.error().message(), HasSubstr(words));
  }
}

// The statistics lie in a budget once, however many sequences share it.
TEST_F(ProfileOnMade, IsChargedOnceToABudgetOfSeveralSequences) {
  SessionOptions options = Options(SmallLlama(), "k4v4");
  options.profile = std::make_shared<const Profile>(StatisticsOf(SmallLlama()));
  options.ctx = 300;
  options.max_sequences = 1;
  const size_t statistics = OpenOrFail(options)->Usage().stats;
  ASSERT_GT(statistics, 0u);
  size_t least = statistics, enough = size_t{1} << 24;  // bytes of one sequence, statistics included
  while (enough - least > 1) {
    options.kv_bytes = least + (enough - least) / 2;
    (Session::Open(options) ? enough : least) = options.kv_bytes;
  }
  options.max_sequences = 4;
  options.kv_bytes = statistics + 4 * (enough - statistics) - 1;
  EXPECT_EQ(Session::Open(options).status().code(), StatusCode::kOutOfBudget);
  ++options.kv_bytes;
  const auto session = OpenOrFail(options);
  ASSERT_TRUE(session);
  for (int seq = 0; seq < 4; ++seq) EXPECT_TRUE(session->FillWithNoise(seq, 300).ok()) << seq;
  EXPECT_LE(session->Usage().bytes_reserved, options.kv_bytes);
}

TEST_F(ProfileOnMade, ReconfigureEqualsAFreshSession) {
  const auto profile = std::make_shared<const Profile>(StatisticsOf(SmallLlama()));
  const auto session = OpenOrFail(Options(SmallLlama(), "k4v4"));
  ASSERT_TRUE(session);
  const Schedule schedule = OneSequence(session->model().vocab, 300, 100, 10);
  const std::vector<float> plain = RunSchedule(session.get(), schedule);

  std::vector<LayerBits> bits(session->model().layers.size(), {3, 2});
  bits[0] = {8, 5};
  SessionOptions options = Options(SmallLlama(), "k4v4");
  options.profile = profile;
  options.layer_bits = bits;
  const std::vector<float> fresh = RunSchedule(options, schedule);
  ASSERT_TRUE(session->Reconfigure("k4v4", profile, bits).ok());
  EXPECT_EQ(session->kv(), "k4v4+mean=profile");
  EXPECT_EQ(session->Length(0), 0);
  EXPECT_EQ(RunSchedule(session.get(), schedule), fresh);
  EXPECT_NE(plain, fresh);

  // What is refused changes nothing.
  session->Clear(0);
  bits.pop_back();
  EXPECT_FALSE(session->Reconfigure("k4v4", profile, bits).ok());
  EXPECT_FALSE(session->Reconfigure("stock-f16", nullptr, {}).ok());
  EXPECT_EQ(RunSchedule(session.get(), schedule), fresh);
  ASSERT_TRUE(session->Reconfigure("k4v4", nullptr, {}).ok());
  EXPECT_EQ(RunSchedule(session.get(), schedule), plain);
}

TEST_F(ProfileOnMade, AutoIsWhatTheProfileRecommends) {
  auto profile = std::make_shared<Profile>(StatisticsOf(SmallLlama()));
  SessionOptions options = Options(SmallLlama(), "auto");
  profile->metadata["recommended_spec"] = "k5v3";
  options.profile = profile;
  EXPECT_EQ(OpenOrFail(options)->kv(), "k5v3+mean=profile");
}

// Copies what a session shows.
class Dump : public StatisticsSink {
 public:
  explicit Dump(const std::vector<LayerShape>& layers) : k(layers.size()), q(layers.size()), layers_(layers) {}
  Status BeginStep(std::span<const StepToken> tokens) override {
    n_ = tokens.size();
    return {};
  }
  void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t stride, int, int) override {
    const auto l = static_cast<size_t>(layer);
    const auto width = static_cast<size_t>(layers_[l].kv_heads * layers_[l].head_dim_k);
    for (size_t t = 0; side == Kv::kK && t < n_; ++t) {
      const float* row = rows + static_cast<ptrdiff_t>(t) * stride / static_cast<ptrdiff_t>(sizeof(float));
      k[l].insert(k[l].end(), row, row + width);
    }
  }
  void Attend(int layer, const AttentionParams&, const Queries& queries, int, int) override {
    const auto l = static_cast<size_t>(layer), d = static_cast<size_t>(layers_[l].head_dim_k);
    for (size_t t = 0; t < n_; ++t) {
      for (int h = 0; h < queries.heads; ++h) {
        const auto* row = reinterpret_cast<const char*>(queries.data) +
                          static_cast<ptrdiff_t>(t) * queries.token_stride + h * queries.head_stride;
        q[l].insert(q[l].end(), reinterpret_cast<const float*>(row), reinterpret_cast<const float*>(row) + d);
      }
    }
  }
  std::vector<std::vector<float>> k, q;  // by layer: [tokens, kv_heads, d], [tokens, heads, d]

 private:
  std::vector<LayerShape> layers_;
  size_t n_ = 0;
};

TEST_F(ProfileOnMade, StatisticsAreThoseOfTheRows) {
  auto options = HostOptions(SmallLlama());
  options.tokens = options.context = 200;
  const auto host = MakeCalibrationHost(options);
  ASSERT_TRUE(host) << host.error().ToString();
  const std::vector<LayerShape>& layers = (*host)->info().layers;
  Dump dump(layers);
  ASSERT_TRUE((*host)->CollectStatistics(&dump).ok());
  const auto collector = StatisticsCollector::Create(layers);
  ASSERT_TRUE((*host)->CollectStatistics(collector->get()).ok());
  Profile profile;
  ASSERT_TRUE((*collector)->MakeStatistics({}, &profile).ok());
  EXPECT_EQ(profile.tokens, 200);
  EXPECT_EQ((*host)->statistics_tokens(), 200);
  constexpr size_t kLead = 16, kTokens = 200;
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto heads = static_cast<size_t>(layers[l].heads), kv_heads = static_cast<size_t>(layers[l].kv_heads);
    const auto d = static_cast<size_t>(layers[l].head_dim_k), group = heads / kv_heads;
    ASSERT_EQ(dump.k[l].size(), kTokens * kv_heads * d);
    for (size_t c = 0; c < kv_heads * d; ++c) {
      double mean = 0, square = 0;
      for (size_t t = kLead; t < kTokens; ++t) {
        mean += static_cast<double>(dump.k[l][t * kv_heads * d + c]) / (kTokens - kLead);
        for (size_t g = 0; g < group; ++g) {
          const auto x = static_cast<double>(dump.q[l][(t * heads + c / d * group + g) * d + c % d]);
          square += x * x / static_cast<double>((kTokens - kLead) * group);
        }
      }
      EXPECT_NEAR(static_cast<double>(profile.layers[l].k.mean[c]), mean, 1e-6);
      EXPECT_NEAR(static_cast<double>(profile.layers[l].query_square[c]), square, 1e-5 * square);
    }
  }
}

TEST_F(ProfileOnMade, CalibratesThroughTheHost) {
  auto host = MakeCalibrationHost(HostOptions(SmallLlama()));
  ASSERT_TRUE(host) << host.error().ToString();
  CalibrationOptions options;
  options.bits = {3};
  options.output_square = (*host)->OutputSquares();
  ASSERT_EQ(options.output_square.size(), (*host)->info().layers.size());
  const auto profile = Calibrate(options, host->get(), nullptr);
  ASSERT_TRUE(profile) << profile.error().ToString();
  ASSERT_TRUE(ValidateProfile(*profile).ok());
  EXPECT_EQ(profile->model_fingerprint, (*host)->info().fingerprint);
  const size_t layers = profile->layers.size();
  ASSERT_EQ(profile->sensitivities.size(), 2 * layers);
  for (const UnitSensitivity& unit : profile->sensitivities) EXPECT_GT(unit.anchors[0].kl, unit.anchors[1].kl);

  const auto kl = [&](int k, int v) { return *(*host)->MeasureKl(std::vector<LayerBits>(layers, {k, v})); };
  EXPECT_EQ(kl(kRawBits, kRawBits), 0);
  EXPECT_GT(kl(2, 2), kl(4, 4));
  EXPECT_GT(kl(4, 4), kl(8, 8));
  const BudgetEntry& entry = profile->byte_budget_table.at(0);
  EXPECT_LE(*entry.measured_kl, kl(3, 3));
  // Another host of the same options measures the same.
  auto again = MakeCalibrationHost(HostOptions(SmallLlama()));
  ASSERT_TRUE((*again)->UseProfile(*profile).ok());
  EXPECT_EQ(*(*again)->MeasureKl(std::vector<LayerBits>(layers, {3, 3})), kl(3, 3));
}

TEST_F(ProfileOnMade, ShortTextsAndOtherSpecsAreRefused) {
  auto options = HostOptions(SmallLlama());
  options.text = "ships";
  EXPECT_THAT(MakeCalibrationHost(options).status().message(), HasSubstr("calibration needs 160"));
  options = HostOptions(SmallLlama());
  options.kv = "q4_0";
  EXPECT_THAT(MakeCalibrationHost(options).status().message(), HasSubstr("kNvN"));
}

}  // namespace
}  // namespace tersekv::llama
