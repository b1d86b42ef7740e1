// SPDX-License-Identifier: Apache-2.0
// A barrier for threads that each have a core and meet again within microseconds: waiting threads spin, and give way
// only after a while. Waking a sleeping thread costs more than the attention of a layer.
#pragma once

#include <atomic>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tersekv {

class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}

  void Wait() {
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round;) {
      if (spins < kSpins) {
        ++spins;
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 20000;  // a millisecond or so

  static void Pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> round_{0};
};

}  // namespace tersekv
