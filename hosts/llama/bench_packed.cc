// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>

#include "hosts/llama/noise.h"
#include "src/base/check.h"
#include "src/base/spin_barrier.h"
#include "src/base/thread_pool.h"
#include "tersekv/llama_bench.h"

namespace tersekv::llama {
namespace {

constexpr int64_t kFillTokens = 512;  // a step while the history is made
constexpr size_t kRows = 1024;

using Clock = std::chrono::steady_clock;

class PackedBench : public AttentionBench {
 public:
  PackedBench(std::unique_ptr<KvCache> cache, const AttentionBenchShape& shape, const AttentionBenchRows& rows)
      : cache_(std::move(cache)),
        shape_(shape.layer),
        layers_(shape.layers),
        depth_(shape.depth),
        queries_(shape.queries),
        pool_(shape.threads),
        rows_(rows),
        out_(static_cast<size_t>(queries_) * static_cast<size_t>(shape_.heads * shape_.head_dim_v)) {}

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

  Result<StepSeconds> Run() override {
    StayBusy(&pool_);
    const auto begun = Clock::now();
    TERSEKV_RETURN_IF_ERROR(Begin(depth_, queries_));
    AttentionParams params;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim_k));
    Queries queries;
    queries.data = rows_.q.data();
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
      barrier.Wait();
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

  std::vector<float> Output() const override { return out_; }
  size_t cache_bytes() const override { return cache_->Usage().bytes_used; }

 private:
  Status Begin(int64_t begin, int64_t n) {
    tokens_.clear();
    for (int64_t t = 0; t < n; ++t) tokens_.push_back({0, static_cast<int32_t>(begin + t)});
    TERSEKV_RETURN_IF_ERROR(cache_->BeginStep(tokens_));
    Gather(rows_.k, begin, n, &k_step_);
    Gather(rows_.v, begin, n, &v_step_);
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
  const AttentionBenchRows& rows_;
  std::vector<StepToken> tokens_;
  std::vector<float> k_step_, v_step_, out_;
};

}  // namespace

AttentionBenchRows::AttentionBenchRows(const AttentionBenchShape& shape) {
  const LayerShape& layer = shape.layer;
  k = NoiseRows(layer.kv_heads * layer.head_dim_k, kRows, 1);
  v = NoiseRows(layer.kv_heads * layer.head_dim_v, kRows, 2);
  for (const auto& row : NoiseRows(layer.heads * layer.head_dim_k, static_cast<size_t>(shape.queries), 3)) {
    q.insert(q.end(), row.begin(), row.end());
  }
}

Result<std::unique_ptr<AttentionBench>> AttentionBench::Packed(const AttentionBenchShape& shape,
                                                               const std::string& spec, Arithmetic arithmetic,
                                                               const AttentionBenchRows& rows) {
  const auto parsed = ParseSpec(spec);
  if (!parsed) return parsed.error();
  CacheConfig config;
  config.spec = *parsed;
  config.layers.assign(static_cast<size_t>(shape.layers), shape.layer);
  config.max_workers = shape.threads;
  config.arithmetic = arithmetic;
  auto cache = KvCache::Create(config);
  if (!cache) return cache.error();
  auto bench = std::make_unique<PackedBench>(std::move(*cache), shape, rows);
  TERSEKV_RETURN_IF_ERROR(bench->Fill());
  return std::unique_ptr<AttentionBench>(std::move(bench));
}

}  // namespace tersekv::llama
