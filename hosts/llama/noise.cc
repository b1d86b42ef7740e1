// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/noise.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "src/base/check.h"

namespace tersekv::llama {
namespace {

constexpr int64_t kStepTokens = 512;

}  // namespace

void StayBusy(ThreadPool* pool) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(40);
  pool->Run([&](int, int) {
    while (std::chrono::steady_clock::now() < until) {
    }
  });
}

std::vector<std::vector<float>> NoiseRows(int width, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> mean(static_cast<size_t>(width));
  for (float& m : mean) m = normal(random);
  std::vector<std::vector<float>> rows(count, mean);
  for (std::vector<float>& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) row[c] += normal(random) * (0.25f + static_cast<float>(c % 16) / 8);
  }
  return rows;
}

Status FillCacheWithNoise(int32_t seq, int64_t tokens, ThreadPool* pool, KvCache* cache) {
  const std::vector<LayerShape>& layers = cache->config().layers;
  int widest = 0;
  for (const LayerShape& layer : layers) {
    widest = std::max({widest, layer.kv_heads * layer.head_dim_k, layer.kv_heads * layer.head_dim_v});
  }
  std::vector<float> rows;  // [kStepTokens, widest], of every layer and side alike
  for (const auto& row : NoiseRows(widest, kStepTokens, 1)) rows.insert(rows.end(), row.begin(), row.end());
  const auto stride = static_cast<ptrdiff_t>(sizeof(float)) * widest;
  for (int64_t begin = 0; begin < tokens; begin += kStepTokens) {
    std::vector<StepToken> step;
    for (int64_t t = begin; t < std::min(tokens, begin + kStepTokens); ++t) {
      step.push_back({seq, static_cast<int32_t>(t)});
    }
    TERSEKV_RETURN_IF_ERROR(cache->BeginStep(step));
    pool->Run([&](int worker, int workers) {
      for (size_t l = 0; l < layers.size(); ++l) {
        for (const Kv side : {Kv::kK, Kv::kV}) {
          cache->WriteRows(static_cast<int>(l), side, rows.data(), stride, worker, workers);
        }
      }
    });
    TERSEKV_RETURN_IF_ERROR(cache->EndStep());
  }
  return {};
}

}  // namespace tersekv::llama
