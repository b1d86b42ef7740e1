// SPDX-License-Identifier: Apache-2.0
// The cache of one layer: a batch of sequences, one call an attention.
#include "tersekv/cache.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "python/src/arrays.h"
#include "python/src/bind.h"
#include "python/src/pool.h"
#include "python/src/status.h"
#include "src/base/spin_barrier.h"

namespace nb = nanobind;

namespace tersekv::python {
namespace {

// What the caches of one model share.
struct PyMemory {
  explicit PyMemory(size_t budget) : memory(MakeCacheMemory(budget)) {}
  std::shared_ptr<CacheMemory> memory;
  std::vector<float> k, v, q, out;  // fp32 rows of the running call
  size_t staging() const { return sizeof(float) * (k.capacity() + v.capacity() + q.capacity() + out.capacity()); }
  void Release() {
    ReleaseScratch(memory.get());
    for (std::vector<float>* buffer : {&k, &v, &q, &out}) std::vector<float>().swap(*buffer);
  }
};

// [batch, heads, tokens, head_dim]: address, dtype, byte strides of the first three dimensions.
using Tensor = std::tuple<uintptr_t, int, int64_t, int64_t, int64_t>;
// Of one batch row: sequence, first token of the chunk that is no padding, how many, position of that token.
using Row = std::tuple<int32_t, int32_t, int32_t, int32_t>;

struct View {
  char* data;
  DType dtype;
  int64_t batch, head, token;
  explicit View(const Tensor& t)
      : data(reinterpret_cast<char*>(std::get<0>(t))),  // NOLINT(performance-no-int-to-ptr)
        dtype(static_cast<DType>(std::get<1>(t))),
        batch(std::get<2>(t)),
        head(std::get<3>(t)),
        token(std::get<4>(t)) {
    if (data == nullptr) Raise(InvalidArgument("an array without memory (address 0) was passed"));
    if (std::get<1>(t) < 0 || std::get<1>(t) > 2) Raise(InvalidArgument("dtype is none of float32, float16, bfloat16"));
  }
  char* At(size_t b, size_t h, size_t t) const {
    return data + static_cast<ptrdiff_t>(b) * batch + static_cast<ptrdiff_t>(h) * head +
           static_cast<ptrdiff_t>(t) * token;
  }
};

struct Attention {
  float scale;
  int32_t window;
  float softcap;
  std::vector<float> sinks;
};

class PyCache {
 public:
  PyCache(std::shared_ptr<PyMemory> memory, std::string_view spec, int heads, int kv_heads, int dk, int dv,
          int first_layer, std::string_view prefill, std::string_view arithmetic, std::optional<LayerBits> bits,
          std::optional<LayerStats> stats)
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
    cache_ = Take(KvCache::Create(config));
  }

  // Appends the rows' tokens. With a query also attends: out [batch, heads, tokens, head_dim_v]; padding gets zeros.
  void Step(const std::vector<Row>& rows, int32_t tokens, const Tensor& key, const Tensor& value,
            const std::optional<Tensor>& query, const std::optional<Tensor>& output, const Attention& attention) {
    const View k(key), v(value);
    std::optional<View> q, out;
    if (query) q.emplace(*query), out.emplace(output.value());
    if (!attention.sinks.empty() && attention.sinks.size() != static_cast<size_t>(shape_.heads)) {
      Raise(InvalidArgument("sinks has " + std::to_string(attention.sinks.size()) + " values, the layer has " +
                            std::to_string(shape_.heads) + " heads"));
    }
    std::vector<StepToken> step;
    std::vector<std::pair<int32_t, int32_t>> from;  // batch row and token of each
    for (size_t b = 0; b < rows.size(); ++b) {
      const auto& [seq, first, count, position] = rows[b];
      if (first < 0 || count < 0 || first + count > tokens) Raise(InvalidArgument("a row's tokens leave the chunk"));
      for (int32_t i = 0; i < count; ++i) {
        step.push_back({seq, position + i});
        from.emplace_back(static_cast<int32_t>(b), first + i);
      }
    }
    Status status;
    {
      const nb::gil_scoped_release release;
      if (out) ZeroPadding(rows, tokens, *out);
      if (!step.empty()) status = Run(step, from, k, v, q, out, attention);
    }
    Check(status);
  }

  // Slots [low, low + tokens) of each row's sequence, decoded, at [batch, kv_heads, tokens, head_dim]; positions that a
  // sequence does not have (padding) are zero.
  void Read(std::string_view side, const std::vector<int32_t>& sequences, int32_t low, int32_t tokens,
            const Tensor& output) const {
    const View out(output);
    const Kv kv = side == "v" ? Kv::kV : Kv::kK;
    const size_t d = static_cast<size_t>(kv == Kv::kK ? shape_.head_dim_k : shape_.head_dim_v);
    const size_t heads = static_cast<size_t>(shape_.kv_heads);
    Status failure;
    {
      const nb::gil_scoped_release release;
      std::vector<Status> failures(static_cast<size_t>(workers_));
      RunOnThreads(workers_, [&](int worker, int workers) {
        const std::vector<float> zeros(d);
        std::vector<float> row(heads * d);
        for (size_t b = 0; b < sequences.size(); ++b) {
          const std::span<const int32_t> positions = cache_->Positions(sequences[b]);
          size_t order =
              static_cast<size_t>(std::lower_bound(positions.begin(), positions.end(), low) - positions.begin());
          for (int32_t t = 0; t < tokens; ++t) {
            const bool there = order < positions.size() && positions[order] == low + t;
            if (t % workers == worker) {
              if (there) {
                if (Status s = cache_->ReadRows(sequences[b], 0, kv, static_cast<int64_t>(order), 1, row.data(), 0);
                    !s.ok()) {
                  failures[static_cast<size_t>(worker)] = s;
                  return;
                }
              }
              for (size_t h = 0; h < heads; ++h) {
                StoreRow(there ? row.data() + h * d : zeros.data(), out.dtype, d, out.At(b, h, static_cast<size_t>(t)));
              }
            }
            if (there) ++order;
          }
        }
      });
      for (const Status& s : failures) {
        if (!s.ok()) failure = s;
      }
    }
    Check(failure);
  }

  void SetHeads(int heads) {
    Check(cache_->SetQueryHeads(0, heads));
    shape_.heads = heads;
  }
  KvCache& cache() const { return *cache_; }
  const LayerShape& shape() const { return shape_; }
  PyMemory& memory() const { return *memory_; }

 private:
  void ZeroPadding(const std::vector<Row>& rows, int32_t tokens, const View& out) const {
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

  Status Run(const std::vector<StepToken>& step, const std::vector<std::pair<int32_t, int32_t>>& from, const View& k,
             const View& v, const std::optional<View>& q, const std::optional<View>& out, const Attention& attention) {
    if (Status status = cache_->BeginStep(step); !status.ok()) return status;
    const size_t n = step.size(), heads = static_cast<size_t>(shape_.heads);
    const size_t kv_heads = static_cast<size_t>(shape_.kv_heads);
    const size_t dk = static_cast<size_t>(shape_.head_dim_k), dv = static_cast<size_t>(shape_.head_dim_v);
    const auto room = [](std::vector<float>* buffer, size_t floats) {
      if (buffer->size() < floats) buffer->resize(floats);
      return buffer->data();
    };
    float* k_rows = room(&memory_->k, n * kv_heads * dk);
    float* v_rows = room(&memory_->v, n * kv_heads * dv);
    float* q_rows = q ? room(&memory_->q, n * heads * dk) : nullptr;
    float* out_rows = q ? room(&memory_->out, n * heads * dv) : nullptr;
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

  std::shared_ptr<PyMemory> memory_;
  int workers_;
  LayerShape shape_;
  std::unique_ptr<KvCache> cache_;
};

nb::dict UsageOf(const PyCache& self) {
  const CacheUsage u = self.cache().Usage();
  nb::dict d;
  d["pages"] = u.pages;
  d["raw_rows"] = u.raw_rows;
  d["stats"] = u.stats;
  d["tables"] = u.tables;
  d["bytes_used"] = u.bytes_used;
  d["bytes_reserved"] = u.bytes_reserved;
  d["scratch"] = u.scratch + self.memory().staging();
  d["bytes_f16"] = u.bytes_f16;
  d["tokens"] = u.tokens;
  d["tokens_packed"] = u.tokens_packed;
  d["bits_effective"] = u.bits_effective;
  return d;
}

}  // namespace

void BindCache(nb::module_& m) {
  nb::class_<PyMemory>(m, "Memory", "Pages, their budget and scratch of the layers of one model; for one thread.")
      .def(nb::init<size_t>(), nb::arg("byte_budget") = 0)
      .def("release_scratch", &PyMemory::Release);
  nb::class_<PyCache>(m, "LayerCache", "Packed K and V of one layer for any number of sequences; for one thread.")
      .def(
          "__init__",
          [](PyCache* self, std::shared_ptr<PyMemory> memory, std::string_view spec, int heads, int kv_heads,
             int head_dim_k, int head_dim_v, int layer, std::string_view prefill, std::string_view arithmetic,
             std::optional<std::tuple<int, int>> bits, std::optional<std::vector<std::vector<float>>> stats) {
            std::optional<LayerBits> widths;
            if (bits) widths = LayerBits{std::get<0>(*bits), std::get<1>(*bits)};
            std::optional<LayerStats> given;
            if (stats) {
              if (stats->size() != 4) Raise(InvalidArgument("stats are k_mean, k_scale, v_mean, v_scale"));
              given = LayerStats{(*stats)[0], (*stats)[1], (*stats)[2], (*stats)[3]};
            }
            new (self) PyCache(std::move(memory), spec, heads, kv_heads, head_dim_k, head_dim_v, layer, prefill,
                               arithmetic, widths, std::move(given));
          },
          nb::arg("memory"), nb::arg("spec"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim_k"),
          nb::arg("head_dim_v"), nb::arg("layer") = 0, nb::arg("prefill") = "raw", nb::arg("arithmetic") = "int16",
          nb::arg("bits") = nb::none(), nb::arg("stats") = nb::none())
      .def(
          "step",
          [](PyCache& self, const std::vector<Row>& rows, int32_t tokens, const Tensor& k, const Tensor& v,
             const std::optional<Tensor>& q, const std::optional<Tensor>& out, float scale, int32_t window,
             float softcap, std::vector<float> sinks) {
            if (q.has_value() != out.has_value()) Raise(InvalidArgument("a query needs an output and the reverse"));
            self.Step(rows, tokens, k, v, q, out, {scale, window, softcap, std::move(sinks)});
          },
          nb::arg("rows"), nb::arg("tokens"), nb::arg("k"), nb::arg("v"), nb::arg("q") = nb::none(),
          nb::arg("out") = nb::none(), nb::arg("scale") = 1.0f, nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
          nb::arg("sinks") = std::vector<float>(),
          "Appends tokens and, with q and out, attends. rows: (sequence, first token, tokens, position) a batch row; "
          "arrays: (address, dtype, batch stride, head stride, token stride) in bytes.")
      .def("read", &PyCache::Read, nb::arg("side"), nb::arg("sequences"), nb::arg("low"), nb::arg("tokens"),
           nb::arg("out"))
      .def(
          "length", [](const PyCache& self, int32_t seq) { return self.cache().Length(seq); }, nb::arg("sequence"))
      .def(
          "truncate", [](PyCache& self, int32_t seq, int64_t tokens) { Check(self.cache().Truncate(seq, tokens)); },
          nb::arg("sequence"), nb::arg("tokens"))
      .def(
          "fork", [](PyCache& self, int32_t from, int32_t to) { Check(self.cache().Fork(from, to)); },
          nb::arg("source"), nb::arg("to"))
      .def(
          "remove", [](PyCache& self, int32_t seq) { self.cache().Remove(seq); }, nb::arg("sequence"))
      .def("usage", &UsageOf)
      .def(
          "formula_bytes",
          [](const PyCache& self, int64_t tokens) { return FormulaBytes(self.cache().config(), tokens); },
          nb::arg("tokens"), "Bytes of a sequence of so many tokens by the formula of docs/formats.md.")
      .def("set_heads", &PyCache::SetHeads, nb::arg("heads"), "Query heads that later steps attend with.")
      .def_prop_ro("heads", [](const PyCache& self) { return self.shape().heads; });
}

}  // namespace tersekv::python
