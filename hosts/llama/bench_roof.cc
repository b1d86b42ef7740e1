// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "src/base/aligned.h"
#include "src/base/thread_pool.h"
#include "tersekv/llama_bench.h"

namespace tersekv::llama {

double MemoryReadRate(int threads) {
  constexpr size_t kBytes = size_t{512} << 20;
  const HugeArray memory = MakeHuge(kBytes);
  std::memset(memory.get(), 1, kBytes);
  ThreadPool pool(threads);
  std::atomic<uint64_t> total{0};  // so that the sums are needed
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run([&](int worker, int workers) {
      const size_t share = kBytes / static_cast<size_t>(workers) / 64 * 64;
      const auto* words = reinterpret_cast<const uint64_t*>(memory.get() + static_cast<size_t>(worker) * share);
      uint64_t sum[8] = {};
      for (size_t i = 0; i < share / sizeof(uint64_t); i += 8) {
        for (size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
      }
      for (const uint64_t s : sum) total += s;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(kBytes) / seconds);
  }
  return best;
}

}  // namespace tersekv::llama
