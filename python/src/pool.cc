// SPDX-License-Identifier: Apache-2.0
#include "python/src/pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "src/base/thread_pool.h"

namespace tersekv::python {
namespace {

constexpr int kMostThreads = 1024;

int DefaultThreads() {
  const char* text = std::getenv("TERSEKV_THREADS");
  const int asked = text != nullptr ? std::atoi(text) : 0;
  const int n = asked > 0 ? asked : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(n, 1, kMostThreads);
}

struct Shared {
  std::mutex mutex;
  int threads = DefaultThreads();
  std::unique_ptr<ThreadPool> pool;
  pid_t owner = 0;
};

// Never destroyed: threads of the interpreter may still run at exit.
Shared& State() {
  static Shared* state = new Shared;
  if (const pid_t self = getpid(); state->owner != self) {
    if (state->owner != 0) {  // the child of a fork: threads and locks stayed with the parent
      const int threads = state->threads;
      state = new Shared;
      state->threads = threads;
    }
    state->owner = self;
  }
  return *state;
}

}  // namespace

int NumThreads() { return State().threads; }

void SetNumThreads(int n) {
  Shared& state = State();
  const std::lock_guard lock(state.mutex);
  n = std::clamp(n, 1, kMostThreads);
  if (n != state.threads) state.pool.reset();
  state.threads = n;
}

void RunOnThreads(int limit, const std::function<void(int, int)>& work) {
  Shared& state = State();
  const std::lock_guard lock(state.mutex);
  if (std::min(limit, state.threads) <= 1) return work(0, 1);
  if (!state.pool) state.pool = std::make_unique<ThreadPool>(state.threads);
  const int workers = std::min(limit, state.threads);
  state.pool->Run([&](int worker, int) {
    if (worker < workers) work(worker, workers);
  });
}

}  // namespace tersekv::python
