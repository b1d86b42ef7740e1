// SPDX-License-Identifier: Apache-2.0
// The cache of one layer: a batch of sequences, one call an attention.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/arrays.h"
#include "python/src/status.h"
#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv::python {

// What the caches of one model share. They may be called from any threads: calls take turns.
struct PyMemory {
  explicit PyMemory(size_t byte_budget) : budget(byte_budget), memory(MakeCacheMemory(byte_budget)) {}
  const size_t budget;
  std::mutex mutex;  // of all below, and of every cache of this memory; see Turn
  std::shared_ptr<CacheMemory> memory;
  std::vector<float> k, v, q, out;  // fp32 rows of the running call
  size_t charged = 0;               // scratch and staging that are counted under the budget

  size_t staging() const { return sizeof(float) * (k.capacity() + v.capacity() + q.capacity() + out.capacity()); }
  // Counts what scratch and staging take now; false: over the budget, nothing changed.
  bool CountScratch();
  void Release();  // scratch and staging
};

// While it lives, nobody else is in a cache of this memory. The GIL is given up before and taken back after, so who has
// the turn never waits for Python, and no Python code (a finalizer) runs in this thread meanwhile.
class Turn {
 public:
  explicit Turn(PyMemory& memory) : lock_(memory.mutex) {}

 private:
  nanobind::gil_scoped_release release_;
  std::lock_guard<std::mutex> lock_;
};

// [batch, heads, tokens, head_dim]: address, dtype, byte strides of the first three dimensions.
using Tensor = std::tuple<uintptr_t, int, int64_t, int64_t, int64_t>;
// Of one batch row: sequence, first token of the chunk that is no padding, how many, position of that token.
using Row = std::tuple<int32_t, int32_t, int32_t, int32_t>;

struct Attention {
  float scale;
  int32_t window;
  float softcap;
  std::vector<float> sinks;
};

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

// Methods raise Python exceptions and take turns (PyMemory) without the GIL.
class PyCache {
 public:
  PyCache(std::shared_ptr<PyMemory> memory, std::string_view spec, int heads, int kv_heads, int dk, int dv,
          int first_layer, std::string_view prefill, std::string_view arithmetic, std::optional<LayerBits> bits,
          std::optional<LayerStats> stats, int32_t window, int rollback, bool values_rotated);
  ~PyCache();
  PyCache(const PyCache&) = delete;
  PyCache& operator=(const PyCache&) = delete;

  // Appends the rows' tokens. With a query also attends: out [batch, heads, tokens, head_dim_v]; padding gets zeros.
  // undo: Undo can take the rows' sequences back to before this call, until Settle.
  void Step(const std::vector<Row>& rows, int32_t tokens, const Tensor& key, const Tensor& value,
            const std::optional<Tensor>& query, const std::optional<Tensor>& output, const Attention& attention,
            bool undo);
  // Back to before the first Step with undo since Settle, exactly. Sequences without one stay.
  void Undo(const std::vector<int32_t>& sequences);
  void Settle(const std::vector<int32_t>& sequences);

  // Slots [low, low + tokens) of each row's sequence, decoded, at [batch, kv_heads, tokens, head_dim]; positions that a
  // sequence does not have (padding) are zero.
  void Read(std::string_view side, const std::vector<int32_t>& sequences, int32_t low, int32_t tokens,
            const Tensor& output);
  int64_t Length(int32_t sequence);
  void Truncate(int32_t sequence, int64_t tokens);
  void Crop(int32_t sequence, int32_t position);  // removes the tokens from this position on
  void Fork(int32_t from, int32_t to);
  void Remove(int32_t sequence);
  CacheUsage Usage();  // scratch with staging; bytes_reserved without both
  size_t Formula(int64_t tokens);
  void SetHeads(int heads);
  int heads();

 private:
  static constexpr int32_t kKept = 1 << 30;  // ids of forks that Undo takes: those of their sequences above this

  struct Way {  // back
    int64_t tokens = 0;
    bool kept = false;  // a fork of the sequence is there
  };

  void ZeroPadding(const std::vector<Row>& rows, int32_t tokens, const View& out) const;
  Status Keep(const std::vector<Row>& rows);
  void Trim(int32_t sequence);
  Status Begin(const std::vector<StepToken>& step, bool attends);
  Status Run(const std::vector<StepToken>& step, const std::vector<std::pair<int32_t, int32_t>>& from, const View& k,
             const View& v, const std::optional<View>& q, const std::optional<View>& out, const Attention& attention);
  Status ReadAll(Kv side, const std::vector<int32_t>& sequences, int32_t low, int32_t tokens, const View& out);

  std::shared_ptr<PyMemory> memory_;
  int workers_;
  LayerShape shape_;
  std::unique_ptr<KvCache> cache_;
  std::map<int32_t, Way> ways_;  // by sequence
};

}  // namespace tersekv::python
