// SPDX-License-Identifier: Apache-2.0
// A real model with sliding windows, where scripts/gemma.sh has installed it.
#include <gtest/gtest.h>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

TEST(Gemma, IsServedAsLlamaCppServesIt) {
  const std::string path = CacheFolder() + "/models/gemma-3-270m.Q4_K_M.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model at " << path << ": scripts/gemma.sh installs it";
  const std::unique_ptr<Session> stock = OpenOrFail(Options(path, "stock-f32")),
                                 ours = OpenOrFail(Options(path, "f32")), packed = OpenOrFail(Options(path, "k8v8"));
  ASSERT_TRUE(stock && ours && packed);
  const ModelInfo& info = ours->model();
  ASSERT_EQ(info.layers.size(), 18u);
  for (size_t l = 0; l < 18; ++l) {
    EXPECT_EQ(info.layers[l], (LayerShape{4, 1, 256, 256}));
    EXPECT_EQ(info.windows[l], l % 6 == 5 ? 0 : 512) << l;
  }
  std::stringstream text;
  text << std::ifstream(TERSEKV_TEST_SOURCE_DIR "/LICENSE").rdbuf();
  const Result<std::vector<int32_t>> tokens = stock->Tokenize(text.str(), true, false);
  ASSERT_TRUE(tokens);
  Schedule schedule = OneSequence(info.vocab, 700, 128, 0);  // past the window
  ASSERT_GE(tokens->size(), 700u);
  for (std::vector<BatchToken>& batch : schedule) {
    for (BatchToken& t : batch) {
      t.token = (*tokens)[static_cast<size_t>(t.pos)];
      t.logits = t.pos >= 600;
    }
  }
  const std::vector<float> reference = RunSchedule(stock.get(), schedule);
  // Quantised weights round activations too, so that any two ways of adding differ by some 1e-3.
  EXPECT_LE(Compare("Gemma, f32", reference, RunSchedule(ours.get(), schedule), info.vocab).kl_mean, 0.02);
  EXPECT_LE(Compare("Gemma, k8v8", reference, RunSchedule(packed.get(), schedule), info.vocab).kl_mean, 0.02);
}

}  // namespace
}  // namespace tersekv::llama
