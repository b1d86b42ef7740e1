// SPDX-License-Identifier: Apache-2.0
// A cache driven by bytes. Bytes 0 to 3: spec, what is given with it, budget, attention; then operations: steps that
// end, fail or are aborted, truncations, forks, removals. A shadow knows what each sequence must hold.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tests/fuzz/fuzz.h"

namespace tersekv::fuzz {
namespace {

constexpr const char* kSpecs[] = {
    "k4v4+sink=2+win=5",
    "k2v3+sink=0+win=0",
    "kivi-k4v4+win=7+page=64",
    "q4_0",
    "k4tv4+win=9",  // of trellis the one that searches least
    "k4v4+mean=page+win=3",
    "f16",
    "k4v4+mean=off+scale=off+win=70",
    "k3.5qv2q+sink=1+win=1",
    "k4pv8+win=20",
    "fp8+rot=h1+sink=130",
    "kivi-k3v2-g16+sink=5+win=0",
    "f32",
    "nvfp4+rot=h2+mean=page",
    "k8v5+rot=none+win=128",
    "bf16",
    "fp8-head+rot=h1+sink=3",
    "fp8-tensor+mean=stats+win=5",
};
constexpr int kSequences = 4, kMostTokens = 400, kMostSteps = 40;
constexpr int kSizes[] = {1, 2, 1, 3, 7, 20, 33, 64, 70, 135};

class Driver {
 public:
  explicit Driver(Input* in) : in_(*in) {
    CacheConfig config;
    const size_t spec = in->Byte() % std::size(kSpecs);
    config.spec = ParseSpec(kSpecs[spec]).value();
    config.layers = {{2, 1, 32, 64}, {2, 2, 32, 32}};
    const uint8_t given = in->Byte();
    if (given & 1) config.layer_bits = {{4, 3}, {2, 8}};
    if (given & 2) config.statistics = {Statistics(1, 32, 64), Statistics(2, 32, 32)};
    config.arithmetic = static_cast<Arithmetic>((given >> 2) % 3);
    if (given & 32) config.spec.page ^= 64 ^ 128;
    const uint8_t budget = in->Byte();
    if (budget > 127) config.byte_budget = size_t{budget - 127u} * 2048;
    const uint8_t attention = in->Byte();
    params_.scale = 0.2f;
    if (attention & 1) params_.window = 1 + (attention >> 4) * 20;
    if (attention & 2) params_.softcap = 5;
    if (attention & 4) params_.max_alibi_bias = 8;
    if (attention & 8) params_.sinks = kSinkLogits;
    Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
    if (!cache) {
      TERSEKV_CHECK(!cache.error().message().empty());
      return;
    }
    cache_ = std::move(*cache);
    empty_ = cache_->Usage();
    fits_ = cache_->TokensThatFit(0);
  }

  void Run() {
    if (!cache_) return;
    for (int i = 0; i < kMostSteps && !in_.empty() && total_ < kMostTokens; ++i) {
      const uint8_t op = in_.Byte();
      switch (op % 8) {
        case 4:
          Truncate(op >> 3);
          break;
        case 5:
          Fork(op >> 3);
          break;
        case 6:
          Remove(op >> 3);
          break;
        default:
          Step(op);
      }
      CheckUsage();
    }
    Finish();
  }

 private:
  static constexpr float kSinkLogits[] = {0.5f, -1.0f, 2.0f, 0.0f};
  using Positions = std::vector<int32_t>;

  static LayerStats Statistics(int heads, int dk, int dv) {
    const auto ramp = [](int n, float first, float step) {
      std::vector<float> values;
      for (int i = 0; i < n; ++i) values.push_back(first + step * static_cast<float>(i % 5));
      return values;
    };
    return {ramp(heads * dk, -1, .5f),  ramp(heads * dk, .5f, .25f), ramp(heads * dv, 1, -.5f),
            ramp(heads * dv, 2, -.25f), ramp(heads * dk, 0, 1),      ramp(heads * dv, 3, 0)};
  }

  float Value() {
    state_ = state_ * 1664525u + 1013904223u;
    return (static_cast<float>(state_ >> 8) * 0x1p-23f - 1.0f) * magnitude_;
  }

  // What a step does apart from its tokens.
  enum class Ending { kEnd, kBadValue, kAbort, kAbortUnwritten, kUnwritten, kBadPosition };

  Ending EndingOf(uint8_t op) {
    if (op % 8 != 7) return Ending::kEnd;
    static constexpr Ending kEndings[] = {Ending::kBadValue, Ending::kAbort, Ending::kAbortUnwritten,
                                          Ending::kUnwritten, Ending::kBadPosition};
    return in_.Pick(kEndings);
  }

  void Step(uint8_t op) {
    static constexpr float kMagnitudes[] = {1, 1, 1, 1e-20f, 300, 0, 60000, 1e-6f};
    magnitude_ = kMagnitudes[op >> 5];
    const Ending ending = EndingOf(op);
    const uint8_t shape = in_.Byte();
    const int n = kSizes[(shape & 31) % std::size(kSizes)], first = in_.Byte() % kSequences;
    const int sequences = 1 + (shape >> 5) % 3;
    std::map<int, Positions> grown = shadow_;
    std::vector<StepToken> tokens;
    for (int i = 0; i < n; ++i) {
      const int seq = (first + (sequences > 1 ? (i * i + i / 3) % sequences : 0)) % kSequences;
      Positions& positions = grown[seq];
      const int gap = i == n / 2 && (shape & 128) ? 1000000 : 1;
      positions.push_back(positions.empty() ? gap - 1 : positions.back() + gap);
      tokens.push_back({seq, positions.back()});
    }
    const int64_t fits = cache_->TokensThatFit(first);
    if (ending == Ending::kBadPosition) {
      tokens.back() = n % 2 ? StepToken{-1, 5} : StepToken{tokens.front().seq, tokens.front().pos};
      TERSEKV_CHECK(cache_->BeginStep(tokens).code() == StatusCode::kInvalidArgument);
      return;
    }
    if (const Status begun = cache_->BeginStep(tokens); !begun.ok()) {
      TERSEKV_CHECK(begun.code() == StatusCode::kOutOfBudget && cache_->config().byte_budget > 0);
      TERSEKV_CHECK(sequences > 1 || n > fits);
      return;
    }
    if (ending == Ending::kAbortUnwritten) return cache_->AbortStep();
    bool finite = true;
    const int layers = ending == Ending::kUnwritten ? 1 : 2;
    for (int layer = 0; layer < layers; ++layer) finite &= RunLayer(layer, n, ending == Ending::kBadValue);
    if (ending == Ending::kAbort) return cache_->AbortStep();
    const Status ended = cache_->EndStep();
    if (ending == Ending::kBadValue || ending == Ending::kUnwritten) {
      TERSEKV_CHECK(ended.code() == (finite ? StatusCode::kInternal : StatusCode::kDataLoss));
      return;
    }
    TERSEKV_CHECK(ended.ok());
    shadow_ = std::move(grown);
    total_ += n;
  }

  // False: a value that no cache takes was among the rows. Outputs are finite and no larger than values can be.
  bool RunLayer(int layer, int n, bool bad) {
    const LayerShape& shape = cache_->config().layers[static_cast<size_t>(layer)];
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const int width = shape.kv_heads * (side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
      std::vector<float> rows(static_cast<size_t>(n * width));
      for (float& v : rows) v = Value();
      if (bad && side == Kv::kV) rows[rows.size() / 2] = n % 2 ? std::nanf("") : INFINITY;
      largest_ = std::max(largest_, magnitude_);
      cache_->WriteRows(layer, side, rows.data(), width * 4, 0, 1);
    }
    const size_t q_width = static_cast<size_t>(shape.heads * shape.head_dim_k);
    const size_t out_width = static_cast<size_t>(shape.heads * shape.head_dim_v), tokens = static_cast<size_t>(n);
    std::vector<float> q(tokens * q_width), out(tokens * out_width, NAN);
    std::vector<float> lse(tokens * static_cast<size_t>(shape.heads), NAN);
    const float rows_magnitude = magnitude_;
    magnitude_ = 2;
    for (float& v : q) v = Value();
    magnitude_ = rows_magnitude;
    Queries queries;
    queries.data = q.data();
    queries.token_stride = static_cast<ptrdiff_t>(q_width * 4);
    queries.head_stride = shape.head_dim_k * 4;
    queries.heads = shape.heads;
    queries.out = out.data();
    queries.out_token_stride = static_cast<ptrdiff_t>(out_width * 4);
    queries.out_head_stride = shape.head_dim_v * 4;
    queries.lse = lse.data();
    cache_->Attend(layer, params_, queries, 0, 1);
    if (bad) return false;
    const float bound = 100 * largest_ + 100;  // sqrt(head_dim), and the statistics that may be given
    for (const float v : out) TERSEKV_CHECK(std::fabs(v) <= bound);
    for (const float v : lse) TERSEKV_CHECK(std::isfinite(v));
    return true;
  }

  void Truncate(int seq) {
    seq %= kSequences;
    Positions& positions = shadow_[seq];
    const size_t keep = positions.size() * in_.Byte() / 255;
    TERSEKV_CHECK(cache_->Truncate(seq, static_cast<int64_t>(keep)).ok());
    positions.resize(keep);
  }

  void Fork(int from) {
    from %= kSequences;
    const int to = in_.Byte() % kSequences;
    const Status forked = cache_->Fork(from, to);
    if (forked.code() == StatusCode::kOutOfBudget) return;
    TERSEKV_CHECK(forked.ok() == shadow_[to].empty());
    if (forked.ok()) shadow_[to] = shadow_[from];
  }

  void Remove(int seq) {
    cache_->Remove(seq % kSequences);
    shadow_[seq % kSequences].clear();
  }

  void CheckUsage() const {
    const CacheUsage usage = cache_->Usage();
    TERSEKV_CHECK(usage.pages + usage.raw_rows + usage.stats + usage.tables == usage.bytes_used);
    TERSEKV_CHECK(usage.bytes_reserved >= usage.bytes_used);
    const size_t budget = cache_->config().byte_budget;
    TERSEKV_CHECK(budget == 0 || usage.bytes_reserved <= std::max(budget, empty_.bytes_reserved));
    int64_t tokens = 0;
    for (const auto& [seq, positions] : shadow_) {
      TERSEKV_CHECK(cache_->Length(seq) == static_cast<int64_t>(positions.size()));
      TERSEKV_CHECK(cache_->LastPosition(seq) == (positions.empty() ? -1 : positions.back()));
      tokens += static_cast<int64_t>(positions.size());
    }
    TERSEKV_CHECK(usage.tokens == tokens && usage.tokens_packed >= 0 && usage.tokens_packed <= tokens);
  }

  // Without sequences the cache is as it was made.
  void Finish() {
    for (int seq = 0; seq < kSequences; ++seq) Remove(seq);
    const CacheUsage usage = cache_->Usage();
    TERSEKV_CHECK(usage.pages == 0 && usage.raw_rows == 0 && usage.tables == 0 && usage.tokens == 0);
    TERSEKV_CHECK(usage.stats == empty_.stats && cache_->TokensThatFit(0) == fits_);
  }

  Input& in_;
  std::unique_ptr<KvCache> cache_;
  AttentionParams params_;
  CacheUsage empty_;
  std::map<int, Positions> shadow_;
  int64_t fits_ = 0, total_ = 0;
  uint32_t state_ = 1;
  float magnitude_ = 1, largest_ = 0;
};

}  // namespace

void FuzzCache(std::span<const uint8_t> data) {
  Input in(data);
  Driver(&in).Run();
}

}  // namespace tersekv::fuzz
