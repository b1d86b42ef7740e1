// SPDX-License-Identifier: Apache-2.0
// Attention of one decode step over a packed history, one thread: microseconds and GB/s of history that is read. Each
// case is first held against plain attention in fp64 over rows that VectorCodec decoded to fp32.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "src/base/half.h"
#include "src/codec/row_statistics.h"
#include "tersekv/cache.h"
#include "tersekv/codec.h"

namespace tersekv::bench {
namespace {

struct Shape {
  const char* name;
  int kv_heads, group, d;
};
constexpr Shape kShapes[] = {{"d64g3", 3, 3, 64}, {"d64g4", 8, 4, 64}, {"d128g4", 8, 4, 128}};
constexpr const char* kSpecs[] = {"f16", "k8v8", "k4v4", "k3v3", "k2v2"};
constexpr int kDepths[] = {1024, 4096, 16384};

// K and V of one layer: a mean and a spread of each channel, as real keys have.
struct Rows {
  Rows(const Shape& shape, int tokens, uint64_t seed)
      : width(static_cast<size_t>(shape.kv_heads * shape.d)),
        values(Normal(width * static_cast<size_t>(tokens), seed)) {
    const std::vector<float> mean = Normal(width, seed + 1);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t c = i % width;
      values[i] = values[i] * (0.25f + static_cast<float>(c % 16) / 8) + mean[c];
    }
  }
  const float* row(int token) const { return values.data() + static_cast<size_t>(token) * width; }
  size_t width;
  std::vector<float> values;
};

void Require(const Status& status) {
  if (!status.ok()) Wrong(status.ToString());
}

class AttendCase {
 public:
  AttendCase(const Shape& shape, const std::string& spec, int depth)
      : shape_(shape), depth_(depth), k_(shape, depth + 1, 10), v_(shape, depth + 1, 20) {
    const int heads = shape.kv_heads * shape.group;
    config_.spec = *ParseSpec(spec);
    config_.layers = {{heads, shape.kv_heads, shape.d, shape.d}};
    auto cache = KvCache::Create(config_);
    if (!cache) Wrong(cache.error().ToString());
    cache_ = std::move(*cache);
    for (int begin = 0; begin < depth; begin += kStep) {
      Begin(begin, std::min(kStep, depth - begin));
      Require(cache_->EndStep());
    }
    q_ = Normal(static_cast<size_t>(heads * shape.d), 30);
    out_.resize(q_.size());
    params_.scale = 1 / std::sqrt(static_cast<float>(shape.d));
    queries_.data = q_.data();
    queries_.heads = heads;
    queries_.out = out_.data();
    queries_.head_stride = queries_.out_head_stride = static_cast<ptrdiff_t>(sizeof(float)) * shape.d;
  }

  void BeginDecode() { Begin(depth_, 1); }
  void Attend() { cache_->Attend(0, params_, queries_, 0, 1); }
  void AbortDecode() { cache_->AbortStep(); }
  size_t HistoryBytes() const {
    const CacheUsage usage = cache_->Usage();
    return usage.pages + usage.raw_rows;
  }

  // Largest difference to the reference over the largest value of the reference.
  double Error() {
    BeginDecode();
    Attend();
    AbortDecode();
    double error = 0, largest = 0;
    for (int h = 0; h < shape_.kv_heads; ++h) {
      const std::vector<float> k = Stored(k_, Kv::kK, h), v = Stored(v_, Kv::kV, h);
      for (int g = 0; g < shape_.group; ++g) {
        const size_t at = static_cast<size_t>((h * shape_.group + g) * shape_.d);
        const std::vector<double> expected = Reference(q_.data() + at, k, v);
        for (size_t c = 0; c < expected.size(); ++c) {
          error = std::max(error, std::fabs(expected[c] - static_cast<double>(out_[at + c])));
          largest = std::max(largest, std::fabs(expected[c]));
        }
      }
    }
    return error / largest;
  }

 private:
  static constexpr int kStep = 512;

  void Begin(int begin, int n) {
    std::vector<StepToken> tokens;
    for (int t = 0; t < n; ++t) tokens.push_back({0, begin + t});
    Require(cache_->BeginStep(tokens));
    const auto stride = static_cast<ptrdiff_t>(k_.width * sizeof(float));
    cache_->WriteRows(0, Kv::kK, k_.row(begin), stride, 0, 1);
    cache_->WriteRows(0, Kv::kV, v_.row(begin), stride, 0, 1);
  }

  // [depth + 1, d]: what the last query sees of one head, decoded.
  std::vector<float> Stored(const Rows& rows, Kv side, int head) const {
    const size_t d = static_cast<size_t>(shape_.d);
    const size_t n = static_cast<size_t>(depth_) + 1;
    std::vector<float> stored(n * d);
    for (size_t i = 0; i < n; ++i) {
      const float* row = rows.row(static_cast<int>(i)) + static_cast<size_t>(head) * d;
      for (size_t c = 0; c < d; ++c) stored[i * d + c] = F16ToF32(F32ToF16(row[c]));
    }
    if (config_.spec.raw()) return stored;
    const auto sink = static_cast<size_t>(config_.spec.sink);
    const size_t packed = n - static_cast<size_t>(config_.spec.win) - sink;
    float* first = stored.data() + sink * d;
    RowStats stats;
    stats.mean.resize(d);
    RowMean(first, kStatsTokens, shape_.d, stats.mean.data());
    if (side == Kv::kK) {
      std::vector<float> inv_scale(d);
      stats.scale.resize(d);
      RowScale(first, kStatsTokens, shape_.d, stats.mean.data(), stats.scale.data(), inv_scale.data());
    }
    auto codec = VectorCodec::Create(config_.spec, side, shape_.d, 0, head, stats);
    if (!codec) Wrong(codec.error().ToString());
    std::vector<uint8_t> records(packed * (*codec)->record_bytes());
    Require((*codec)->Encode(first, packed, records.data()));
    (*codec)->Decode(records.data(), packed, first);
    return stored;
  }

  std::vector<double> Reference(const float* q, const std::vector<float>& k, const std::vector<float>& v) const {
    const size_t d = static_cast<size_t>(shape_.d);
    std::vector<double> scores(k.size() / d, 0.0), out(d, 0.0);
    for (size_t i = 0; i < scores.size(); ++i) {
      for (size_t c = 0; c < d; ++c) scores[i] += static_cast<double>(q[c]) * static_cast<double>(k[i * d + c]);
      scores[i] *= static_cast<double>(params_.scale);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp(scores[i] - largest);
      sum += p;
      for (size_t c = 0; c < d; ++c) out[c] += p * static_cast<double>(v[i * d + c]);
    }
    for (double& o : out) o /= sum;
    return out;
  }

  Shape shape_;
  int depth_;
  Rows k_, v_;
  CacheConfig config_;
  std::unique_ptr<KvCache> cache_;
  AttentionParams params_;
  Queries queries_;
  std::vector<float> q_, out_;
};

constexpr double kTolerance = 5e-4;  // of Arithmetic::kInt16, against fp64 over the same stored rows

void Attend(benchmark::State& state, const Shape& shape, const std::string& spec, int depth) {
  AttendCase work(shape, spec, depth);
  if (const double error = work.Error(); !(error < kTolerance)) {
    Wrong(fmt::format("{} {} depth {}: relative error {:.2e}, allowed {:.0e}", shape.name, spec, depth, error,
                      kTolerance));
  }
  for (auto _ : state) {  // only the attention: a decode step that is taken back
    work.BeginDecode();
    const auto start = std::chrono::steady_clock::now();
    work.Attend();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    work.AbortDecode();
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(work.HistoryBytes()) / 1e9,
                         benchmark::Counter::kIsRate);
  state.counters["history_bytes"] = static_cast<double>(work.HistoryBytes());
}

}  // namespace
}  // namespace tersekv::bench

int main(int argc, char** argv) {
  using namespace tersekv::bench;
  for (const Shape& shape : kShapes) {
    for (const int depth : kDepths) {
      for (const std::string spec : kSpecs) {
        const std::string name = fmt::format("attend/{}/{}/depth:{}", shape.name, spec, depth);
        benchmark::RegisterBenchmark(name.c_str(), Attend, shape, spec, depth)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  return RunAll(argc, argv);
}
