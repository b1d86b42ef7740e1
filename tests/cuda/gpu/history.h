// SPDX-License-Identifier: Apache-2.0
// Some sequences' packed history on the device, made by Append from random rows, and what it decodes to.
#pragma once

#include <vector>

#include "src/cuda/params.h"
#include "tests/cuda/gpu/harness.h"

namespace tersekv::gpu {

struct HistoryShape {
  int k_bits = 4, v_bits = 4, d = 128, kv_heads = 2, page_tokens = 64;
  bool bf16 = true;    // raw
  bool stats = true;   // means and channel scales
  bool zeros = false;  // some rows are their mean
  std::vector<int> lengths;
  // Raw tokens beside the packed ones, for queries of the newest q_len.
  bool has_raw = false, raw_bf16 = true;
  int sink = 0, raw_window = 0, packed_from = 0, raw_page = 16, q_len = 1;
  std::vector<int> raw_begin;  // [sequences] or empty
  uint64_t seed = 1;
};

class History {
 public:
  explicit History(const HistoryShape& shape);

  const HistoryShape& shape() const { return shape_; }
  const cuda::Pool& pool() const { return pool_; }
  const int32_t* lengths() const { return device_lengths_.get(); }
  const int32_t* table() const { return table_.get(); }
  int table_stride() const { return table_stride_; }
  // Where a token's packed row is; `token` counts from the sinks on.
  int64_t Slot(int sequence, int token) const;
  const cuda::RawTokens& raw() const { return raw_; }
  const cuda::Pool& raw_pool() const { return raw_pool_; }
  // Tokens [sink, this) are packed for a query with `end` tokens up to it; without raw tokens all are.
  int PackedEnd(int sequence, int end) const;

  // One vector as it is stored. levels: [d] in rotated space (raw: values); the scale is 1 for raw types.
  void Read(int sequence, int kv_head, int token, Kv side, std::vector<double>* levels, double* scale) const;
  // A raw row as it is stored.
  void ReadRaw(int sequence, int kv_head, int token, Kv side, std::vector<double>* values) const;
  // Canonical codes and scale.
  void ReadRecord(int64_t slot, int kv_head, Kv side, std::vector<uint8_t>* codes, uint16_t* scale) const;
  float ReadRaw(int64_t slot, int kv_head, Kv side, int channel) const;
  size_t pages() const { return memory_.size() / pool_.page_bytes(); }
  void Reload() { pages_ = memory_.Download(); }

  // Host copies: rows [tokens][kv_heads][d] as bf16 patterns, sequences one after the other; statistics [kv_heads][d].
  std::vector<uint16_t> k, v;
  std::vector<float> k_mean, k_scale, k_inv, v_mean, v_scale, v_inv;
  std::vector<int64_t> slots;  // of packed rows, -1 for rows that are raw

 private:
  void FillRaw(Random* random);
  uint32_t Stored(int64_t slot, int kv_head, Kv side, int channel) const;
  const uint8_t* Block(int64_t slot, int kv_head) const;

  HistoryShape shape_;
  cuda::Pool pool_;
  int table_stride_ = 0;
  std::vector<int32_t> pages_of_;  // [sequence][table_stride]
  DeviceArray<uint8_t> memory_;
  DeviceArray<int32_t> device_lengths_, table_;
  DeviceArray<float> stats_;
  std::vector<uint8_t> pages_;
  cuda::RawTokens raw_;
  cuda::Pool raw_pool_;
  DeviceArray<uint8_t> raw_memory_;
  DeviceArray<int32_t> raw_table_, raw_begin_;
};

}  // namespace tersekv::gpu
