// SPDX-License-Identifier: Apache-2.0
// Keys with a constant offset of norm 600 a head, in the first and the last layer, on a pair of channels that RoPE does
// not turn: every score of a query shifts by the same <q, offset>, softmax stays as it is. Packed caches that don't
// take the mean off the keys spend their bits on the offset.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

constexpr int kNorm = 600;
// Scores of some hundreds in fp32 lose about 3e-5 each before softmax; measured: 9e-7 in logits, 3e-11 in KL.
constexpr double kSameLogits = 1e-5;
constexpr const char* kRawTurboQuant = "k4v4+rot=haar+mean=off+scale=off+norm=none+sink=0+win=0";

class HardKeys : public MadeDemoModelTest {
 protected:
  // English text: 512 tokens at once, then 64 single ones; logits of the last 192 tokens.
  Difference Against(const std::string& what, const std::vector<float>& reference, const std::string& model,
                     const std::string& kv) {
    return Compare(what, reference, Logits(model, kv), vocab_);
  }

  std::vector<float> Logits(const std::string& model, const std::string& kv) {
    const std::unique_ptr<Session> session = OpenOrFail(Options(model, kv));
    if (session == nullptr) return {};
    vocab_ = session->model().vocab;
    std::stringstream text;
    text << std::ifstream(TERSEKV_TEST_SOURCE_DIR "/LICENSE").rdbuf();
    const Result<std::vector<int32_t>> tokens = session->Tokenize(text.str(), true, false);
    if (!tokens || tokens->size() < kPrompt + kDecoded) {
      ADD_FAILURE() << "no text";
      return {};
    }
    Schedule schedule(1);
    for (size_t i = 0; i < kPrompt + kDecoded; ++i) {
      if (i >= kPrompt) schedule.emplace_back();
      schedule.back().push_back({(*tokens)[i], static_cast<int32_t>(i), 0, i >= kFirstScored});
    }
    return RunSchedule(session.get(), schedule);
  }

  static constexpr size_t kPrompt = 512, kDecoded = 64, kFirstScored = 384;
  int vocab_ = 0;
};

TEST_F(HardKeys, ReferenceDoesNotSeeThem) {
  const std::string plain = HardKeyModel(0), hard = HardKeyModel(kNorm);
  const std::vector<float> reference = Logits(plain, "stock-f32");
  for (const char* kv : {"stock-f32", "f32"}) {
    const Difference d = Against(fmt::format("hard keys, {}", kv), reference, hard, kv);
    EXPECT_LE(d.relative_rms, kSameLogits);
    EXPECT_LE(d.kl_max, 1e-9);
  }
}

TEST_F(HardKeys, DefaultSurvivesAndRawTurboQuantDoesNot) {
  const std::string plain = HardKeyModel(0), hard = HardKeyModel(kNorm);
  const std::vector<float> plain_logits = Logits(plain, "f32"), hard_logits = Logits(hard, "f32");
  const Difference before = Against("plain, k4v4", plain_logits, plain, "k4v4");
  const Difference after = Against("hard keys, k4v4", hard_logits, hard, "k4v4");
  const Difference raw = Against("hard keys, raw TurboQuant", hard_logits, hard, kRawTurboQuant);
  EXPECT_LE(after.kl_mean, 1.5 * before.kl_mean);
  EXPECT_GE(raw.kl_mean, 10 * after.kl_mean);
}

}  // namespace
}  // namespace tersekv::llama
