// SPDX-License-Identifier: Apache-2.0
// Workers for hosts that bring no threads of their own.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tersekv {

class ThreadPool {
 public:
  explicit ThreadPool(int workers);  // the caller is worker 0, so workers - 1 threads are started
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const { return workers_; }
  // Calls work(worker, workers) once on every worker and returns when all are done. One caller at a time.
  void Run(const std::function<void(int, int)>& work);

 private:
  void Loop(int worker);

  const int workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int, int)>* work_ = nullptr;
  int round_ = 0, running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tersekv
