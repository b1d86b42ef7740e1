// SPDX-License-Identifier: Apache-2.0
#include "src/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace tersekv {
namespace {

TEST(ThreadPool, EveryWorkerRunsOnceARound) {
  for (const int workers : {1, 2, 3, 8}) {
    ThreadPool pool(workers);
    EXPECT_EQ(pool.workers(), workers);
    std::vector<int> runs(static_cast<size_t>(workers));
    for (int round = 1; round <= 500; ++round) {
      pool.Run([&](int worker, int all) {
        EXPECT_EQ(all, workers);
        ++runs[static_cast<size_t>(worker)];
      });
      ASSERT_EQ(runs, std::vector<int>(static_cast<size_t>(workers), round));  // all were done when Run returned
    }
  }
}

TEST(ThreadPool, CallerIsWorkerZeroAndOthersAreThreads) {
  ThreadPool pool(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::thread::id zero;
  pool.Run([&](int worker, int) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    if (worker == 0) zero = std::this_thread::get_id();
  });
  EXPECT_EQ(zero, std::this_thread::get_id());
  EXPECT_EQ(threads.size(), 4u);
}

TEST(ThreadPool, WorkersRunAtTheSameTime) {
  ThreadPool pool(4);
  std::mutex mutex;
  std::condition_variable all_here;
  int here = 0, met = 0;
  pool.Run([&](int, int workers) {
    std::unique_lock lock(mutex);
    if (++here == workers) all_here.notify_all();
    if (all_here.wait_for(lock, std::chrono::seconds(30), [&] { return here == workers; })) ++met;
  });
  EXPECT_EQ(met, 4);
}

TEST(ThreadPool, RunReturnsAfterTheSlowestWorker) {
  ThreadPool pool(3);
  for (const int slow : {0, 1, 2}) {
    std::atomic<int> done = 0;
    pool.Run([&](int worker, int) {
      if (worker == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++done;
    });
    EXPECT_EQ(done, 3);
  }
}

TEST(ThreadPool, AtLeastOneWorker) {
  for (const int workers : {0, -3}) {
    ThreadPool pool(workers);
    EXPECT_EQ(pool.workers(), 1);
    int runs = 0;
    pool.Run([&](int worker, int all) { runs += worker == 0 && all == 1 ? 1 : 0; });
    EXPECT_EQ(runs, 1);
  }
}

TEST(ThreadPool, StopsWithoutEverRunning) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace tersekv
