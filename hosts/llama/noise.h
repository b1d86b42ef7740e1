// SPDX-License-Identifier: Apache-2.0
// Made-up histories, for speed measurements at a depth.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/thread_pool.h"
#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv::llama {

// Keeps the pool's threads busy until those of another engine, which spin on for a while, are asleep, and this
// one's are as awake as within a model.
void StayBusy(ThreadPool* pool);

// `count` rows of [width] with a mean and a spread of each channel, as real keys have.
std::vector<std::vector<float>> NoiseRows(int width, size_t count, uint64_t seed);

// An empty sequence becomes `tokens` tokens long, at positions 0, 1, ...
Status FillCacheWithNoise(int32_t seq, int64_t tokens, ThreadPool* pool, KvCache* cache);

}  // namespace tersekv::llama
