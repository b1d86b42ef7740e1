// SPDX-License-Identifier: Apache-2.0
#include "src/base/spin_barrier.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/base/thread_pool.h"

namespace tersekv {
namespace {

// What every thread wrote before the barrier is there for all of them behind it, round after round.
TEST(SpinBarrier, SeparatesRounds) {
  for (const int threads : {1, 2, 3, 5}) {
    SpinBarrier barrier(threads);
    ThreadPool pool(threads);
    std::vector<int> seen(static_cast<size_t>(threads), 0), wrong(static_cast<size_t>(threads), 0);
    pool.Run([&](int worker, int workers) {
      for (int round = 1; round <= 300; ++round) {
        seen[static_cast<size_t>(worker)] = round;
        barrier.Wait();
        for (int w = 0; w < workers; ++w) wrong[static_cast<size_t>(worker)] += seen[static_cast<size_t>(w)] != round;
        barrier.Wait();
      }
    });
    for (const int w : wrong) EXPECT_EQ(w, 0) << threads << " threads";
  }
}

}  // namespace
}  // namespace tersekv
