// SPDX-License-Identifier: Apache-2.0
// Several threads, as the engine's workers (custom mode) and as our own (overwrite): bit-equal to one.
#include <gtest/gtest.h>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

void CheckThreads(const std::string& path, const Schedule& schedule, int vocab,
                  std::initializer_list<const char*> specs) {
  for (const char* kv : specs) {
    std::vector<float> one;
    for (const HostMode mode : {HostMode::kCustom, HostMode::kOverwrite}) {
      for (const int threads : {1, 2}) {
        SessionOptions options = Options(path, kv);
        options.mode = mode;
        options.threads = threads;
        const std::vector<float> logits = RunSchedule(options, schedule);
        if (one.empty()) one = logits;
        const Difference d =
            Compare(fmt::format("{}, {}, {} threads", kv, HostModeName(mode), threads), one, logits, vocab);
        EXPECT_EQ(one, logits) << d.relative_rms;
      }
    }
  }
}

using ThreadsOnMade = MadeModelTest;
TEST_F(ThreadsOnMade, BitEqual) {
  CheckThreads(SmallLlama(), TwoSequences(320, 200, 150, 20, 5), 320, {"f32", "k4v3"});
}

using ThreadsOnDemo = DemoModelTest;
TEST_F(ThreadsOnDemo, BitEqual) { CheckThreads(DemoModel(), OneSequence(49152, 170, 128, 3), 49152, {"k4v3"}); }

}  // namespace
}  // namespace tersekv::llama
