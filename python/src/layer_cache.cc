// SPDX-License-Identifier: Apache-2.0
#include "python/src/layer_cache.h"

#include <algorithm>
#include <string>

#include "python/src/pool.h"
#include "python/src/status.h"
#include "src/base/spin_barrier.h"

namespace tersekv::python {

namespace {

void Room(std::vector<float>* buffer, size_t floats) {
  if (buffer->size() >= floats) return;
  if (buffer->capacity() < floats) {
    std::vector<float>().swap(*buffer);  // nothing in it is needed
    buffer->reserve(floats);             // resize alone might take twice as much
  }
  buffer->resize(floats);
}

}  // namespace

bool PyMemory::CountScratch() {
  const size_t now = ScratchBytes(*memory) + staging();
  if (now > charged && !ChargeMemory(memory.get(), now - charged)) return false;
  if (now < charged) RefundMemory(memory.get(), charged - now);
  charged = now;
  return true;
}

void PyMemory::Release() {
  ReleaseScratch(memory.get());
  for (std::vector<float>* buffer : {&k, &v, &q, &out}) std::vector<float>().swap(*buffer);
  CountScratch();  // it takes less now
}

PyCache::PyCache(std::shared_ptr<PyMemory> memory, std::string_view spec, int heads, int kv_heads, int dk, int dv,
                 int first_layer, std::string_view prefill, std::string_view arithmetic, std::optional<LayerBits> bits,
                 std::optional<LayerStats> stats, int32_t window, int rollback, bool values_rotated)
    : memory_(std::move(memory)), workers_(NumThreads()), shape_{heads, kv_heads, dk, dv} {
  CacheConfig config;
  config.spec = Take(ParseSpec(spec));
  config.layers = {shape_};
  config.first_layer = first_layer;
  config.memory = memory_->memory;
  config.max_workers = workers_;
  if (prefill != "raw" && prefill != "decode") {
    Raise(InvalidArgument("prefill is 'raw' or 'decode', not '" + std::string(prefill) + "'"));
  }
  config.prefill = prefill == "raw" ? Prefill::kRaw : Prefill::kDecode;
  if (arithmetic != "int16" && arithmetic != "exact" && arithmetic != "fast") {
    Raise(InvalidArgument("arithmetic is 'int16', 'exact' or 'fast', not '" + std::string(arithmetic) + "'"));
  }
  config.arithmetic = arithmetic == "exact"  ? Arithmetic::kExact
                      : arithmetic == "fast" ? Arithmetic::kFast
                                             : Arithmetic::kInt16;
  if (bits) config.layer_bits = {*bits};
  if (stats) config.statistics = {*std::move(stats)};
  if (window < 0) Raise(InvalidArgument("window is " + std::to_string(window) + ": 0 (none) or above"));
  if (window > 0) config.windows = {window};
  config.rollback = rollback;
  config.values_rotated = values_rotated;
  cache_ = Take([&] {
    const Turn turn(*memory_);
    return KvCache::Create(config);
  }());
}

PyCache::~PyCache() {
  const Turn turn(*memory_);
  cache_.reset();
}

void PyCache::Step(const std::vector<Row>& rows, int32_t tokens, const Tensor& key, const Tensor& value,
                   const std::optional<Tensor>& query, const std::optional<Tensor>& output, const Attention& attention,
                   bool undo) {
  const View k(key), v(value);
  std::optional<View> q, out;
  if (query) q.emplace(*query), out.emplace(output.value());
  std::vector<StepToken> step;
  std::vector<std::pair<int32_t, int32_t>> from;  // batch row and token of each
  for (size_t b = 0; b < rows.size(); ++b) {
    const auto& [seq, first, count, position] = rows[b];
    if (seq >= kKept) Raise(InvalidArgument("sequence " + std::to_string(seq) + " is too large: below 2^30"));
    if (first < 0 || count < 0 || first + count > tokens) Raise(InvalidArgument("a row's tokens leave the chunk"));
    for (int32_t i = 0; i < count; ++i) {
      step.push_back({seq, position + i});
      from.emplace_back(static_cast<int32_t>(b), first + i);
    }
  }
  Status status;
  {
    const Turn turn(*memory_);
    if (!attention.sinks.empty() && attention.sinks.size() != static_cast<size_t>(shape_.heads)) {
      status = InvalidArgument("sinks has " + std::to_string(attention.sinks.size()) + " values, the layer has " +
                               std::to_string(shape_.heads) + " heads");
    }
    const std::vector<int32_t>& windows = cache_->config().windows;
    if (query && !windows.empty() && (attention.window <= 0 || attention.window > windows[0])) {
      status = InvalidArgument("a window of " + std::to_string(attention.window) + " is asked for, the layer keeps " +
                               std::to_string(windows[0]) + " tokens");
    }
    if (status.ok() && undo) status = Keep(rows);
    if (status.ok()) {
      if (out) ZeroPadding(rows, tokens, *out);
      if (!step.empty()) status = Begin(step, query.has_value());
      if (status.ok() && !step.empty()) status = Run(step, from, k, v, q, out, attention);
    }
  }
  Check(status);
}

void PyCache::ZeroPadding(const std::vector<Row>& rows, int32_t tokens, const View& out) const {
  const std::vector<float> zeros(static_cast<size_t>(shape_.head_dim_v));
  for (size_t b = 0; b < rows.size(); ++b) {
    const int32_t first = std::get<1>(rows[b]), end = first + std::get<2>(rows[b]);
    for (int32_t t = 0; t < tokens; ++t) {
      if (t == first) t = end;
      if (t >= tokens) break;
      for (size_t h = 0; h < static_cast<size_t>(shape_.heads); ++h) {
        StoreRow(zeros.data(), out.dtype, zeros.size(), out.At(b, h, static_cast<size_t>(t)));
      }
    }
  }
}

// A step whose pages, scratch and staging are there and counted.
Status PyCache::Begin(const std::vector<StepToken>& step, bool attends) {
  Status status = cache_->BeginStep(step);
  if (status.code() == StatusCode::kOutOfBudget) {  // an earlier step may have needed more scratch
    memory_->Release();
    status = cache_->BeginStep(step);
  }
  if (!status.ok()) return status;
  const size_t n = step.size(), kv_heads = static_cast<size_t>(shape_.kv_heads);
  const size_t heads = attends ? static_cast<size_t>(shape_.heads) : 0;
  const size_t dk = static_cast<size_t>(shape_.head_dim_k), dv = static_cast<size_t>(shape_.head_dim_v);
  Room(&memory_->k, n * kv_heads * dk);
  Room(&memory_->v, n * kv_heads * dv);
  Room(&memory_->q, n * heads * dk);
  Room(&memory_->out, n * heads * dv);
  if (memory_->CountScratch()) return {};
  const size_t scratch = ScratchBytes(*memory_->memory) + memory_->staging();
  cache_->AbortStep();
  memory_->Release();
  return OutOfBudget("the KV budget of " + std::to_string(memory_->budget) +
                     " bytes cannot take the scratch of a step of " + std::to_string(n) + " tokens (" +
                     std::to_string(scratch) +
                     " bytes beside the history): feed fewer tokens at once, raise the budget, or use fewer bits");
}

Status PyCache::Run(const std::vector<StepToken>& step, const std::vector<std::pair<int32_t, int32_t>>& from,
                    const View& k, const View& v, const std::optional<View>& q, const std::optional<View>& out,
                    const Attention& attention) {
  const size_t n = step.size(), heads = static_cast<size_t>(shape_.heads);
  const size_t kv_heads = static_cast<size_t>(shape_.kv_heads);
  const size_t dk = static_cast<size_t>(shape_.head_dim_k), dv = static_cast<size_t>(shape_.head_dim_v);
  float *k_rows = memory_->k.data(), *v_rows = memory_->v.data();
  float *q_rows = memory_->q.data(), *out_rows = memory_->out.data();
  const auto load = [&](const View& view, size_t i, size_t count, size_t d, float* rows) {
    for (size_t h = 0; h < count; ++h) {
      LoadRow(view.At(static_cast<size_t>(from[i].first), h, static_cast<size_t>(from[i].second)), view.dtype, d,
              rows + (i * count + h) * d);
    }
  };
  Queries queries;
  queries.data = q_rows;
  queries.heads = shape_.heads;
  queries.head_stride = static_cast<ptrdiff_t>(dk * sizeof(float));
  queries.token_stride = static_cast<ptrdiff_t>(heads) * queries.head_stride;
  queries.out = out_rows;
  queries.out_head_stride = static_cast<ptrdiff_t>(dv * sizeof(float));
  queries.out_token_stride = static_cast<ptrdiff_t>(heads) * queries.out_head_stride;
  AttentionParams params;
  params.scale = attention.scale;
  params.window = attention.window;
  params.softcap = attention.softcap;
  params.sinks = attention.sinks.empty() ? nullptr : attention.sinks.data();
  // Waking threads for a few tokens costs more than they save.
  constexpr int64_t kWorthThreads = int64_t{1} << 20;  // multiplications
  int64_t work = 0;
  for (const StepToken& token : step)
    work += (q ? token.pos + 1 : 1) * int64_t{shape_.heads} * (shape_.head_dim_k + shape_.head_dim_v);
  const int limit = work < kWorthThreads ? 1 : workers_;
  SpinBarrier* barrier = nullptr;
  std::optional<SpinBarrier> shared;
  std::once_flag once;
  RunOnThreads(limit, [&](int worker, int workers) {
    std::call_once(once, [&] { barrier = &shared.emplace(workers); });
    for (size_t i = static_cast<size_t>(worker); i < n; i += static_cast<size_t>(workers)) {
      load(k, i, kv_heads, dk, k_rows);
      load(v, i, kv_heads, dv, v_rows);
      if (q) load(*q, i, heads, dk, q_rows);
    }
    barrier->Wait();
    cache_->WriteRows(0, Kv::kK, k_rows, static_cast<ptrdiff_t>(kv_heads * dk * sizeof(float)), worker, workers);
    cache_->WriteRows(0, Kv::kV, v_rows, static_cast<ptrdiff_t>(kv_heads * dv * sizeof(float)), worker, workers);
    if (!q) return;
    barrier->Wait();
    cache_->Attend(0, params, queries, worker, workers);
    barrier->Wait();
    for (size_t i = static_cast<size_t>(worker); i < n; i += static_cast<size_t>(workers)) {
      for (size_t h = 0; h < heads; ++h) {
        StoreRow(out_rows + (i * heads + h) * dv, out->dtype, dv,
                 out->At(static_cast<size_t>(from[i].first), h, static_cast<size_t>(from[i].second)));
      }
    }
  });
  return cache_->EndStep();
}

}  // namespace tersekv::python
