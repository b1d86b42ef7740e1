// SPDX-License-Identifier: Apache-2.0
// What the host finds out about layers, and what follows from it for sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Layers = MadeModelTest;

ModelInfo InfoOf(const std::string& path) {
  const std::unique_ptr<Session> session = OpenOrFail(Options(path, "f32"));
  return session ? session->model() : ModelInfo();
}

TEST_F(Layers, WindowsAreFoundLayerByLayer) {
  EXPECT_THAT(InfoOf(RandomModel("gemma2", 4, 2, 64, "--window 128 --layers 5")).windows,
              ElementsAre(128, 0, 128, 0, 128));
  EXPECT_THAT(InfoOf(RandomModel("gemma3", 4, 1, 64, "--window 77 --layers 7")).windows,
              ElementsAre(77, 77, 0, 77, 77, 0, 77));
  EXPECT_THAT(InfoOf(RandomModel("gpt-oss", 4, 2, 64, "--window 4 --layers 3")).windows, ElementsAre(4, 0, 4));
  EXPECT_THAT(InfoOf(SmallLlama()).windows, Each(0));
}

TEST_F(Layers, BytesFollowTheWindow) {
  const Schedule schedule = OneSequence(320, 900, 128, 0);
  std::vector<size_t> pages;
  for (const char* window : {"64", "2000"}) {  // of one layer of two
    const std::string more = fmt::format("--window {}", window);
    const std::unique_ptr<Session> session = OpenOrFail(Options(RandomModel("gpt-oss", 4, 2, 64, more), "k4v4"));
    ASSERT_NE(session, nullptr);
    RunSchedule(session.get(), schedule);
    pages.push_back(session->Usage().pages);
  }
  EXPECT_LE(pages[0], pages[1] * 6 / 10);
}

TEST_F(Layers, SharedKvIsHeldOnce) {
  const std::string path = RandomModel("gemma3n", 2, 1, 64, "--embd 128 --window 256");
  const ModelInfo info = InfoOf(path);
  ASSERT_EQ(info.layers.size(), 20u);  // of 25
  ASSERT_EQ(info.windows.size(), 20u);
  for (size_t l = 0; l < 20; ++l) EXPECT_EQ(info.windows[l], l % 5 == 4 ? 0 : 256) << l;
}

TEST_F(Layers, LatentIsKeptOnce) {
  const std::string path = RandomModel("deepseek2", 4, 4, 64, "--embd 256");
  const std::unique_ptr<Session> session = OpenOrFail(Options(path, "f16"));
  const std::unique_ptr<Session> stock = OpenOrFail(Options(path, "stock-f16"));
  ASSERT_TRUE(session && stock);
  EXPECT_THAT(session->model().layers, Each(LayerShape{4, 1, 128, 64}));
  const Schedule schedule = OneSequence(320, 320, 160, 0);
  RunSchedule(session.get(), schedule);
  RunSchedule(stock.get(), schedule);
  EXPECT_EQ(session->Usage().bytes_f16, 2u * 2 * 128 * 320);
  EXPECT_EQ(session->Usage().bytes_f16, stock->Usage().bytes_used);
  EXPECT_NEAR(session->Usage().bits_effective, 16, 0.5);
  // KIVI's pages hold keys and values: twice, and its sizes say so.
  const std::unique_ptr<Session> twice = OpenOrFail(Options(path, "kivi-k4v4"));
  ASSERT_NE(twice, nullptr);
  RunSchedule(twice.get(), schedule);
  EXPECT_EQ(twice->Usage().bytes_f16, stock->Usage().bytes_used);
}

TEST_F(Layers, LongRopeTakesTheFactorsOfItsContext) {
  const std::string path = RandomModel("phi3", 4, 2, 64, "");
  std::vector<std::vector<float>> logits;
  for (const int64_t ctx : {256, 600}) {  // the model was trained for 512
    const Schedule schedule = OneSequence(320, 200, 100, 20);
    SessionOptions ours = Options(path, "f32"), stock = Options(path, "stock-f32");
    ours.ctx = stock.ctx = ctx;
    const std::vector<float> reference = RunSchedule(stock, schedule);
    const Difference d = Compare(fmt::format("context {}", ctx), reference, RunSchedule(ours, schedule), 320);
    EXPECT_LE(d.relative_rms, 1e-5);
    logits.push_back(reference);
  }
  EXPECT_GT(Compare("short and long factors", logits[0], logits[1], 320).relative_rms, 0.01);
}

TEST_F(Layers, LongRopeWithoutAStagingAreaOfTheRightSizeIsRefused) {
  SessionOptions options = Options(RandomModel("phi3", 4, 2, 64, "--trained 128"), "f32");
  options.ctx = 100;
  const Result<std::unique_ptr<Session>> session = Session::Open(options);
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code(), StatusCode::kUnsupported);
  EXPECT_THAT(session.error().message(), AllOf(HasSubstr("LongRoPE"), HasSubstr("128")));
}

TEST_F(Layers, HybridsAreClearedNotTruncated) {
  const std::string path = RandomModel("lfm2", 4, 2, 64, "");
  for (const char* kv : {"f32", "k4v4"}) {
    const std::unique_ptr<Session> session = OpenOrFail(Options(path, kv));
    ASSERT_NE(session, nullptr);
    EXPECT_TRUE(session->model().recurrent);
    EXPECT_EQ(session->model().layers.size(), 2u);  // of 4
    const Schedule schedule = TwoSequences(320, 150, 90, 20, 3);
    const std::vector<float> first = RunSchedule(session.get(), schedule);
    const int64_t length = session->Length(0);
    const Status status = session->Truncate(0, 10);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("recurrent"), HasSubstr("Clear it")));
    EXPECT_EQ(session->Length(0), length);
    EXPECT_TRUE(session->Truncate(0, length).ok());
    EXPECT_TRUE(session->Truncate(0, 0).ok());
    session->Clear(1);
    EXPECT_EQ(session->Length(0), 0);
    EXPECT_EQ(RunSchedule(session.get(), schedule), first) << kv;  // nothing of the old state is left
  }
}

TEST_F(Layers, HybridsRunOneSequenceAtATimeOrOneTokenOfEach) {
  const std::string path = RandomModel("qwen3next", 4, 2, 64, "--embd 128");
  SessionOptions options = Options(path, "f32");
  options.max_sequences = 3;
  options.ubatch = 32;
  SessionOptions stock = options;
  stock.kv = "stock-f32";
  Schedule schedule(1);
  TokenStream tokens(320, 3);
  int32_t at[3] = {};
  for (const int seq : {2, 0, 1, 1, 1, 0, 2, 2, 0, 1, 2, 0, 0, 0, 0, 1}) {
    schedule.back().push_back({tokens.Next(), at[seq]++, seq, true});
  }
  for (int round = 0; round < 40; ++round) {
    schedule.emplace_back();
    for (const int seq : {round % 3, (round + 1) % 3}) schedule.back().push_back({tokens.Next(), at[seq]++, seq, true});
  }
  const Difference d = Compare("three sequences", RunSchedule(stock, schedule), RunSchedule(options, schedule), 320);
  EXPECT_LE(d.relative_rms, 1e-5);
}

}  // namespace
}  // namespace tersekv::llama
