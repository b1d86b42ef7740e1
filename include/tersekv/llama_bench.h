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
