// SPDX-License-Identifier: Apache-2.0
// The attention of one step by itself, without a model: ours and llama.cpp's own kernel, on the same made-up rows. For
// speed measurements side by side (docs/perf/cpu.md); link tersekv::llama.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv::llama {

// `layers` layers alike, one sequence of `depth` tokens, a step of `queries` more.
struct AttentionBenchShape {
  LayerShape layer;
  int layers = 1;
  int64_t depth = 0;
  int queries = 1;
  int threads = 1;
};

// Rows of a made-up model.
struct AttentionBenchRows {
  explicit AttentionBenchRows(const AttentionBenchShape& shape);
  // [kv_heads * head_dim] of token t % size(), with a mean and a spread of each channel, as real keys have.
  std::vector<std::vector<float>> k, v;
  std::vector<float> q;  // [queries, heads, head_dim_k], of every layer alike
};

struct StepSeconds {
  double append = 0;  // ours only
  double attend = 0;  // all layers
};

// llama.cpp's own quantiser of one of its cache types, as it writes and reads rows: for `bench codec`.
class StockQuantizer {
 public:
  // "q8_0", "q5_0", "q4_0", "iq4_nl"; kInvalidArgument: another one.
  static Result<StockQuantizer> Create(const std::string& type);
  int block() const { return block_; }  // values that are quantised together
  size_t Bytes(size_t values) const;
  // values: a multiple of block().
  void Encode(const float* row, size_t values, uint8_t* blocks) const {
    encode_(row, blocks, static_cast<int64_t>(values));
  }
  void Decode(const uint8_t* blocks, size_t values, float* row) const {
    decode_(blocks, row, static_cast<int64_t>(values));
  }

 private:
  StockQuantizer() = default;
  void (*encode_)(const float*, void*, int64_t) = nullptr;
  void (*decode_)(const void*, float*, int64_t) = nullptr;
  int block_ = 0;
  size_t block_bytes_ = 0;
};

// Bytes a second that this many threads read from memory together, now: the roof of decoding.
double MemoryReadRate(int threads);

class AttentionBench {
 public:
  // Our cache: `spec` as in ParseSpec. The rows must outlive it.
  static Result<std::unique_ptr<AttentionBench>> Packed(const AttentionBenchShape& shape, const std::string& spec,
                                                        Arithmetic arithmetic, const AttentionBenchRows& rows);
  // llama.cpp's kernel on a cache laid out as llama.cpp lays it out: "f16", "q8_0", "q4_0" or another of its types.
  // kInvalidArgument: no such type; kUnsupported: the head dims don't fit its blocks.
  static Result<std::unique_ptr<AttentionBench>> Stock(const AttentionBenchShape& shape, const std::string& type,
                                                       const AttentionBenchRows& rows);
  virtual ~AttentionBench() = default;
  AttentionBench(const AttentionBench&) = delete;
  AttentionBench& operator=(const AttentionBench&) = delete;

  virtual Result<StepSeconds> Run() = 0;          // one step, which is taken back
  virtual std::vector<float> Output() const = 0;  // of the last Run: [queries, heads, head_dim_v] of one layer
  virtual size_t cache_bytes() const = 0;

 protected:
  AttentionBench() = default;
};

}  // namespace tersekv::llama
