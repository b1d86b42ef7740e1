// SPDX-License-Identifier: Apache-2.0
// The history that we hold and the attention that we compute are what llama.cpp holds and computes: logits of every
// token against a stock context without flash attention and with an f32 cache.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

constexpr double kF32Limit = 1e-5, kF16Limit = 2e-3;

class Mechanism : public MadeDemoModelTest {
 protected:
  struct Case {
    const char* kv;
    HostMode mode;
    double limit;
  };

  void Check(const std::string& name, const Schedule& schedule, std::initializer_list<Case> cases) {
    const std::string path = F32DemoModel();
    const std::unique_ptr<Session> stock = OpenOrFail(Options(path, "stock-f32"));
    ASSERT_NE(stock, nullptr);
    const int vocab = stock->model().vocab;
    const std::vector<float> reference = RunSchedule(stock.get(), schedule);
    for (const Case& c : cases) {
      SessionOptions options = Options(path, c.kv);
      options.mode = c.mode;
      const std::unique_ptr<Session> session = OpenOrFail(options);
      ASSERT_NE(session, nullptr);
      EXPECT_EQ(session->mode(), c.mode);
      const Difference d = Compare(fmt::format("{}, {}, {}", name, c.kv, HostModeName(c.mode)), reference,
                                   RunSchedule(session.get(), schedule), vocab);
      EXPECT_LE(d.relative_rms, c.limit);
      if (c.limit == kF32Limit) {
        EXPECT_EQ(d.argmax_moved, 0);
      }
    }
  }

  static int Vocab() { return 49152; }
};

TEST_F(Mechanism, OneSequence) {
  // Calls of 230 tokens are two forward passes each (128 + 102).
  Check("f32 SmolLM2, 700 + 200", OneSequence(Vocab(), 700, 230, 200),
        {{"f32", HostMode::kCustom, kF32Limit},
         {"f16", HostMode::kCustom, kF16Limit},
         {"f32", HostMode::kOverwrite, kF32Limit}});
}

// Nothing but the cache is rounded here, so this is the sharp form of the comparison that Shipped makes below.
TEST_F(Mechanism, F16IsNoWorseThanStockF16) {
  const std::string path = F32DemoModel();
  const Schedule schedule = OneSequence(Vocab(), 256, 128, 20);
  const std::vector<float> reference = RunSchedule(Options(path, "stock-f32"), schedule);
  SessionOptions options = Options(path, "stock-f16");
  options.flash_attention = true;
  const Difference theirs = Compare("f32 SmolLM2, stock-f16", reference, RunSchedule(options, schedule), Vocab());
  const Difference ours = Compare("f32 SmolLM2, f16", reference, RunSchedule(Options(path, "f16"), schedule), Vocab());
  EXPECT_LE(ours.relative_rms, theirs.relative_rms);
  EXPECT_LE(ours.kl_mean, theirs.kl_mean);
  EXPECT_LE(ours.argmax_moved, theirs.argmax_moved);
}

TEST_F(Mechanism, TwoSequences) {
  Check("f32 SmolLM2, two sequences, 300 and 170 + 100 joint + 20", TwoSequences(Vocab(), 300, 170, 100, 20),
        {{"f32", HostMode::kCustom, kF32Limit}, {"f16", HostMode::kCustom, kF16Limit}});
  Check("f32 SmolLM2, two sequences, 150 and 90 + 30 joint + 5", TwoSequences(Vocab(), 150, 90, 30, 5),
        {{"f32", HostMode::kOverwrite, kF32Limit}, {"f16", HostMode::kOverwrite, kF16Limit}});
}

// On quantised weights the engine rounds activations to 8 bits, so that any difference, even the 1e-7 of another order
// of additions, ends up as the same noise: two good caches are equally far from the reference, each in its own
// direction. "No worse than stock's own f16 cache" is then a statement about means: within three standard errors.
using Shipped = DemoModelTest;

TEST_F(Shipped, NoWorseThanStockF16) {
  std::stringstream text;
  text << std::ifstream(TERSEKV_TEST_SOURCE_DIR "/LICENSE").rdbuf();
  const std::unique_ptr<Session> stock = OpenOrFail(Options(DemoModel(), "stock-f32"));
  ASSERT_NE(stock, nullptr);
  const int vocab = stock->model().vocab;
  const Result<std::vector<int32_t>> tokens = stock->Tokenize(text.str(), true, false);
  ASSERT_TRUE(tokens);
  Schedule schedule = OneSequence(vocab, 700, 128, 200);
  ASSERT_GE(tokens->size(), 900u);
  for (std::vector<BatchToken>& batch : schedule) {
    for (BatchToken& t : batch) t.token = (*tokens)[static_cast<size_t>(t.pos)];
  }
  const std::vector<float> reference = RunSchedule(stock.get(), schedule);
  SessionOptions options = Options(DemoModel(), "stock-f16");
  options.flash_attention = true;
  const Difference theirs = Compare("Q4_1 SmolLM2, stock-f16", reference, RunSchedule(options, schedule), vocab);
  const Difference ours =
      Compare("Q4_1 SmolLM2, f16", reference, RunSchedule(Options(DemoModel(), "f16"), schedule), vocab);
  ASSERT_EQ(ours.rows, theirs.rows);
  const double n = static_cast<double>(ours.rows);
  const double mean = ours.kl_mean - theirs.kl_mean;
  double variance = 0;
  for (size_t i = 0; i < ours.kl.size(); ++i) variance += std::pow(ours.kl[i] - theirs.kl[i] - mean, 2) / n;
  const double error = std::sqrt(variance / n);
  const double moves = static_cast<double>(ours.argmax_moved + theirs.argmax_moved);
  fmt::print("[ measured ] mean KL, ours - stock's: {:.3g}, standard error {:.3g}\n", mean, error);
  EXPECT_LE(mean, 3 * error);
  EXPECT_LE(static_cast<double>(ours.argmax_moved - theirs.argmax_moved), 3 * std::sqrt(moves));
}

}  // namespace
}  // namespace tersekv::llama
