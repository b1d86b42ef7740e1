// SPDX-License-Identifier: Apache-2.0
// Head counts, head sizes and architectures that the demo model does not have, on small random models.
#include <gtest/gtest.h>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

struct Shape {
  int heads, kv_heads, head_dim;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << fmt::format("{} heads, {} KV heads, head_dim {}", s.heads, s.kv_heads, s.head_dim);
}

// Logits with our f32 cache in both modes against stock without flash attention and with an f32 cache.
void CheckF32(const std::string& path, double limit) {
  for (const bool two : {false, true}) {
    const std::unique_ptr<Session> stock = OpenOrFail(Options(path, "stock-f32"));
    ASSERT_NE(stock, nullptr);
    const int vocab = stock->model().vocab;
    const Schedule schedule = two ? TwoSequences(vocab, 200, 90, 20, 5) : OneSequence(vocab, 200, 150, 40);
    const std::vector<float> reference = RunSchedule(stock.get(), schedule);
    for (const HostMode mode : {HostMode::kCustom, HostMode::kOverwrite}) {
      SessionOptions options = Options(path, "f32");
      options.mode = mode;
      const std::string name = fmt::format("{}, f32, {}, {}", std::filesystem::path(path).stem().string(),
                                           HostModeName(mode), two ? "two sequences" : "one");
      const Difference d = Compare(name, reference, RunSchedule(options, schedule), vocab);
      EXPECT_LE(d.relative_rms, limit);
      EXPECT_EQ(d.argmax_moved, 0);
    }
  }
}

class RandomLlama : public MadeModelTest, public ::testing::WithParamInterface<Shape> {
 protected:
  static std::string Path() {
    const Shape s = GetParam();
    return RandomModel("llama", s.heads, s.kv_heads, s.head_dim, "--embd 256");
  }
};

TEST_P(RandomLlama, F32EqualsStock) { CheckF32(Path(), 1e-5); }

// Long enough that most tokens are packed.
TEST_P(RandomLlama, K8V8IsNear) {
  const std::string path = Path();
  const std::unique_ptr<Session> stock = OpenOrFail(Options(path, "stock-f32"));
  const std::unique_ptr<Session> session = OpenOrFail(Options(path, "k8v8"));
  ASSERT_NE(stock, nullptr);
  ASSERT_NE(session, nullptr);
  const int vocab = stock->model().vocab;
  const Schedule schedule = OneSequence(vocab, 400, 128, 20);
  const Difference d = Compare(fmt::format("{}, k8v8", std::filesystem::path(path).stem().string()),
                               RunSchedule(stock.get(), schedule), RunSchedule(session.get(), schedule), vocab);
  EXPECT_GT(session->Usage().tokens_packed, 200);
  EXPECT_GT(d.relative_rms, 0.0);
  EXPECT_LE(d.kl_mean, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RandomLlama,
                         ::testing::Values(Shape{4, 4, 64}, Shape{6, 2, 64}, Shape{8, 2, 64}, Shape{8, 1, 64},
                                           Shape{4, 4, 128}, Shape{6, 2, 128}, Shape{8, 2, 128}, Shape{8, 1, 128}),
                         [](const auto& tested) {
                           return fmt::format("H{}Kv{}D{}", tested.param.heads, tested.param.kv_heads,
                                              tested.param.head_dim);
                         });

using RandomModels = MadeModelTest;

TEST_F(RandomModels, MptHasAlibi) {
  CheckF32(RandomModel("mpt", 8, 8, 64, ""), 1e-4);
  CheckF32(RandomModel("mpt", 6, 2, 64, ""), 1e-4);  // slopes of a head count that is no power of two
}

TEST_F(RandomModels, Qwen2HasBiases) { CheckF32(RandomModel("qwen2", 6, 2, 64, ""), 1e-5); }

}  // namespace
}  // namespace tersekv::llama
