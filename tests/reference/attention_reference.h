// SPDX-License-Identifier: Apache-2.0
// The attention contract in double precision and plain loops: what is raw or packed for a query (CONTRACT, section 6),
// statistics (section 4), codecs one vector at a time (tersekv/codec.h), exact softmax. It shares no code with
// src/cache, src/attention and src/cpu's attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tersekv/attention.h"
#include "tersekv/cache.h"
#include "tersekv/codec.h"

namespace tersekv::reference {

struct Answer {
  std::vector<double> out;  // [head_dim_v]
  double lse = 0;
};

// ALiBi slopes of Press et al. 2022: powers of two first, the others between them.
double AlibiSlope(int head, int heads, double max_bias);

// One sequence in one layer. Copies are forks.
class Sequence {
 public:
  Sequence(const CacheConfig& config, int layer);

  // k: [kv_heads * head_dim_k], v: [kv_heads * head_dim_v]
  void Append(int32_t position, const float* k, const float* v);
  // Keeps the first `tokens`. What is packed stays packed, what the window had dropped stays dropped; statistics stay
  // while a packed token or all tokens that were measured are left.
  void Truncate(int64_t tokens);
  // Tokens [begin, end), all of them packed, are not seen any more; they keep their places.
  void RemovePacked(int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) tokens_[static_cast<size_t>(j)].removed = true;
  }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }

  // The query of token `order` and one head; q: [head_dim_k].
  Answer Attend(int64_t order, int head, const float* q, const AttentionParams& params);
  // Whether the query of token `order` reads token `j` from packed bytes.
  bool IsPacked(int64_t j, int64_t order) const;

 private:
  struct Token {
    int32_t position = 0;
    bool lost = false;     // its raw row left the window before a truncation
    bool removed = false;  // seen by nobody
    std::vector<float> stored[2], decoded[2];
  };

  // Pages are packed whole: KIVI's keys, and mean=page.
  bool WholePages() const { return spec_.mean == MeanMode::kPage || spec_.k.family == Family::kKivi; }
  int64_t PageStart(int64_t order) const { return order - std::max<int64_t>(order - spec_.sink, 0) % spec_.page; }
  void TruncatePages(int64_t end);
  void DecodePage(int64_t first, int side);
  bool Measured(int64_t order) const { return !needs_stats_ || order >= measured_from_; }
  void Measure();
  void MakeCodecs(const std::vector<RowStats> (&stats)[2]);
  int Dim(int side) const { return side == 0 ? shape_.head_dim_k : shape_.head_dim_v; }
  const std::vector<float>& Row(int64_t j, int side, bool packed);

  static constexpr int64_t kNever = INT64_MAX;
  static constexpr int kMeasured = 128;  // tokens
  KvSpec spec_;
  LayerShape shape_;
  int layer_;
  bool needs_stats_;
  int64_t rollback_;
  int64_t measured_from_ = kNever;  // first order whose query may read packed tokens
  std::vector<Token> tokens_;
  int64_t raw_begin_ = 0;                                      // whole pages: rows before this one are gone
  std::vector<std::shared_ptr<const VectorCodec>> codecs_[2];  // by side, KV head
  std::vector<RowStats> page_stats_[2];                        // mean=page: what codecs_ do not apply
};

}  // namespace tersekv::reference
