// SPDX-License-Identifier: Apache-2.0
#include "cli/packed_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "src/base/check.h"
#include "src/base/spin_barrier.h"
#include "src/base/thread_pool.h"

namespace tersekv::cli {
namespace {

constexpr int64_t kFillTokens = 512;  // a step while the history is made

using Clock = std::chrono::steady_clock;

class NoisePackedAttention : public PackedAttention {
 public:
  NoisePackedAttention(std::unique_ptr<KvCache> cache, const LayerShape& shape, int64_t depth, int queries, int threads,
                       const std::vector<std::vector<float>>& k_rows, const std::vector<std::vector<float>>& v_rows)
      : cache_(std::move(cache)),
        shape_(shape),
        layers_(static_cast<int>(cache_->config().layers.size())),
        depth_(depth),
        queries_(queries),
        pool_(threads),
        k_rows_(k_rows),
        v_rows_(v_rows),
        out_(static_cast<size_t>(queries) * static_cast<size_t>(shape.heads * shape.head_dim_v)) {}

  Status Fill() {
    for (int64_t begin = 0; begin < depth_; begin += kFillTokens) {
      const int64_t n = std::min(kFillTokens, depth_ - begin);
      TERSEKV_RETURN_IF_ERROR(Begin(begin, n));
      pool_.Run([&](int worker, int workers) {
        for (int layer = 0; layer < layers_; ++layer) Write(layer, worker, workers);
      });
      TERSEKV_RETURN_IF_ERROR(cache_->EndStep());
    }
    return {};
  }

  Result<StepSeconds> Run(const std::vector<float>& q) override {
    Settle();
    const auto begun = Clock::now();
    TERSEKV_RETURN_IF_ERROR(Begin(depth_, queries_));
    AttentionParams params;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim_k));
    Queries queries;
    queries.data = q.data();
    queries.heads = shape_.heads;
    queries.out = out_.data();
    queries.head_stride = static_cast<ptrdiff_t>(sizeof(float)) * shape_.head_dim_k;
    queries.token_stride = queries.head_stride * shape_.heads;
    queries.out_head_stride = static_cast<ptrdiff_t>(sizeof(float)) * shape_.head_dim_v;
    queries.out_token_stride = queries.out_head_stride * shape_.heads;
    StepSeconds seconds;
    seconds.append = std::chrono::duration<double>(Clock::now() - begun).count();
    SpinBarrier barrier(pool_.workers());
    pool_.Run([&](int worker, int workers) {  // one barrier a layer on each side, as an engine has them
      auto start = Clock::now();
      const auto lap = [&](double* into) {
        const auto now = Clock::now();
        if (worker == 0) *into += std::chrono::duration<double>(now - start).count();
        start = now;
      };
      for (int layer = 0; layer < layers_; ++layer) {
        Write(layer, worker, workers);
        barrier.Wait();
        lap(&seconds.append);
        cache_->Attend(layer, params, queries, worker, workers);
        barrier.Wait();
        lap(&seconds.attend);
      }
    });
    cache_->AbortStep();
    return seconds;
  }

  const std::vector<float>& Output() const override { return out_; }
  CacheUsage Usage() const override { return cache_->Usage(); }

 private:
  // Keeps the workers busy until the peer's threads, which spin on for a while, are asleep: as awake as in a model.
  void Settle() {
    const auto until = Clock::now() + std::chrono::milliseconds(15);
    pool_.Run([&](int, int) {
      while (Clock::now() < until) {
      }
    });
  }
  Status Begin(int64_t begin, int64_t n) {
    tokens_.clear();
    for (int64_t t = 0; t < n; ++t) tokens_.push_back({0, static_cast<int32_t>(begin + t)});
    TERSEKV_RETURN_IF_ERROR(cache_->BeginStep(tokens_));
    Gather(k_rows_, begin, n, &k_step_);
    Gather(v_rows_, begin, n, &v_step_);
    return {};
  }
  static void Gather(const std::vector<std::vector<float>>& rows, int64_t begin, int64_t n, std::vector<float>* out) {
    out->clear();
    for (int64_t t = begin; t < begin + n; ++t) {
      const std::vector<float>& row = rows[static_cast<size_t>(t) % rows.size()];
      out->insert(out->end(), row.begin(), row.end());
    }
  }
  void Write(int layer, int worker, int workers) {
    const auto stride = static_cast<ptrdiff_t>(sizeof(float)) * shape_.kv_heads;
    cache_->WriteRows(layer, Kv::kK, k_step_.data(), stride * shape_.head_dim_k, worker, workers);
    cache_->WriteRows(layer, Kv::kV, v_step_.data(), stride * shape_.head_dim_v, worker, workers);
  }

  std::unique_ptr<KvCache> cache_;
  LayerShape shape_;
  int layers_;
  int64_t depth_;
  int queries_;
  ThreadPool pool_;
  const std::vector<std::vector<float>>&k_rows_, &v_rows_;
  std::vector<StepToken> tokens_;
  std::vector<float> k_step_, v_step_, out_;
};

}  // namespace

std::vector<std::vector<float>> NoiseRows(size_t width, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> mean(width);
  for (float& m : mean) m = normal(random);
  std::vector<std::vector<float>> rows(count, std::vector<float>(width));
  for (std::vector<float>& row : rows) {
    for (size_t c = 0; c < width; ++c) row[c] = mean[c] + normal(random) * (0.25f + static_cast<float>(c % 16) / 8);
  }
  return rows;
}

Result<std::unique_ptr<PackedAttention>> PackedAttention::Create(const std::string& spec, const LayerShape& shape,
                                                                 int layers, int64_t depth, int queries, int threads,
                                                                 Arithmetic arithmetic,
                                                                 const std::vector<std::vector<float>>& k_rows,
                                                                 const std::vector<std::vector<float>>& v_rows) {
  const auto parsed = ParseSpec(spec);
  if (!parsed) return parsed.error();
  CacheConfig config;
  config.spec = *parsed;
  config.layers.assign(static_cast<size_t>(layers), shape);
  config.max_workers = threads;
  config.arithmetic = arithmetic;
  auto cache = KvCache::Create(config);
  if (!cache) return cache.error();
  auto attention =
      std::make_unique<NoisePackedAttention>(std::move(*cache), shape, depth, queries, threads, k_rows, v_rows);
  TERSEKV_RETURN_IF_ERROR(attention->Fill());
  return std::unique_ptr<PackedAttention>(std::move(attention));
}

}  // namespace tersekv::cli
