// SPDX-License-Identifier: Apache-2.0
#include "src/base/thread_pool.h"

namespace tersekv {

ThreadPool::ThreadPool(int workers) : workers_(workers < 1 ? 1 : workers) {
  for (int w = 1; w < workers_; ++w) threads_.emplace_back([this, w] { Loop(w); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::Run(const std::function<void(int, int)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    running_ = workers_ - 1;
    ++round_;
  }
  start_.notify_all();
  work(0, workers_);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
}

void ThreadPool::Loop(int worker) {
  int seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    const auto* work = work_;
    lock.unlock();
    (*work)(worker, workers_);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace tersekv
