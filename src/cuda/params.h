// SPDX-License-Identifier: Apache-2.0
// What the kernels take, and how they are launched. No CUDA types: a stream is a pointer, device memory plain pointers.
// Launches allocate nothing and wait for nothing, so that they can be captured in a graph; lengths, slots and page ids
// are read on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/host_device.h"
#include "src/cuda/layout.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv::cuda {

enum class Type : int { kF32, kF16, kBF16 };

// Strides are in elements.
struct Rows {
  void* data = nullptr;
  Type type = Type::kBF16;
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
};

// Of one side and layer: [kv_heads, d] or null. A row is coded as (row - mean) * inv_scale.
struct SideStats {
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* inv_scale = nullptr;
};

// The packed history of one layer.
struct Pool {
  uint8_t* data = nullptr;  // [pages][kv_heads][page_tokens / 16] blocks, 16-byte aligned
  BlockLayout block{};
  bool bf16 = true;  // raw types: bf16, else f16
  int kv_heads = 0;
  int page_tokens = 64;  // a power of two, at least 16
  uint64_t seed = 0;     // of the signs
  int layer = 0;
  SideStats k, v;

  size_t page_bytes() const {
    return static_cast<size_t>(kv_heads) * static_cast<size_t>(page_tokens / kBlockTokens * block.bytes());
  }
};

struct AppendParams {
  Pool pool;
  NormMode k_norm = NormMode::kUnbiased, v_norm = NormMode::kLs;
  Rows k, v;                       // [tokens, kv_heads, d]
  const int64_t* slots = nullptr;  // [tokens]: page * page_tokens + place, each once; below 0: the token is left out
  int tokens = 0;
  int* not_finite = nullptr;  // set to 1 when a row is not finite (it then decodes to its mean); or null
};

// Tokens by slot; or, without slots, the same range of places of each sequence, for attention that reads rows.
struct DecompressParams {
  Pool pool;
  Rows k, v;                             // slots: [tokens, kv_heads, d]; a range: [batch, tokens, kv_heads, d]
  const int64_t* slots = nullptr;        // [tokens]; below 0: the row is not written
  int tokens = 0;                        // of a range: of each sequence
  const int32_t* lengths = nullptr;      // [batch] rows of tokens from there on become zeros
  const int32_t* block_table = nullptr;  // [batch, table_stride] page ids
  int64_t table_stride = 0;
  int batch = 0, first = 0;  // first: the range's first token, a multiple of 16
  // true, for ranges: scale * level, without rotation, channel scale and mean; V has channel RowChannel(i) at place i
  bool transformed = false;
};

// Queries of attention over decompressed rows of the transformed space: <q, key> = <transformed, row> + <q, mean>.
struct TransformParams {
  Pool pool;
  Rows q, out;  // [batch, q_len, heads, d]
  float* bias =
      nullptr;  // [batch, heads, q_len] scale * <q, mean>, which is missing in the lse of such attention; or null
  int batch = 0, heads = 0, q_len = 1;
  float scale = 1;  // of q.k
};

// Joins results of parts of the history, each attended in transformed space, by their lse. They become a state, or,
// when `out` is there, come back from that space and are joined with a part that never was in it.
struct MergeParams {
  Pool pool;
  int batch = 0, heads = 0, q_len = 1;
  static constexpr int kMostParts = 16;  // more: by way of a state
  struct Part {
    const void* rows;  // [batch, q_len, heads, d], as `part` says
    const float* lse;  // [batch, heads, q_len] natural logarithms; -INFINITY: has seen nothing
  };
  Part parts[kMostParts] = {};
  int count = 0;
  Rows part;                    // type and strides
  bool resume = false;          // the state is a part, too
  float* state = nullptr;       // [batch, q_len, heads, d]
  float* state_lse = nullptr;   // [batch, heads, q_len]
  const float* bias = nullptr;  // what TransformParams wrote, or null
  Rows own;                     // [batch, q_len, heads, d] in the space of queries, or no data
  const float* own_lse = nullptr;
  Rows out;              // [batch, q_len, heads, d], or no data: the state is written
  float* lse = nullptr;  // [batch, heads, q_len] of everything, or null
};

// Tokens that attention reads raw, beside the packed ones: the first and the newest of each sequence. Position j lies
// in page table[j / page_tokens] of a pool of raw pages of its own, packed token i is position sink + i. The query at
// position p sees as packed [sink, PackedEnd(p + 1)), as raw what is before and behind.
struct RawTokens {
  const uint8_t* data = nullptr;  // null: there are none
  bool bf16 = true;               // else f16
  int page_tokens = 16;
  const int32_t* table = nullptr;  // [batch, table_stride] page ids
  int64_t table_stride = 0;
  const int32_t* begin = nullptr;  // [batch] rows behind the sinks are there from this position on; or null: all
  int sink = 0, window = 0;        // window: newest tokens, a query's own included
  int packed_from = 0;             // a query with fewer tokens up to it sees all of them raw

  // end: tokens up to a query, its own included; from: its sequence's `begin`, or 0.
  TERSEKV_HOST_DEVICE int PackedEnd(int end, int from) const {
    const int old = end - window > from ? end - window : from;
    return end >= packed_from && old > sink ? old : sink;
  }
};

struct AttendParams {
  Pool pool;
  Rows q, out;                           // [batch, q_len, heads, d]; the newest q_len tokens of each sequence
  float* lse = nullptr;                  // [batch, q_len, heads] natural logarithm of the softmax's sum; or null
  const int32_t* lengths = nullptr;      // [batch] tokens of each sequence, those of q included
  const int32_t* block_table = nullptr;  // [batch, table_stride] page ids
  int64_t table_stride = 0;
  int batch = 0, heads = 0, q_len = 1;
  float scale = 1;
  int window = 0;                       // as in tersekv/attention.h; 0 = all
  float softcap = 0;                    // 0 = off
  const float* alibi_slopes = nullptr;  // [heads] or null
  const float* sinks = nullptr;         // [heads] or null
  bool rotate_out = true;               // false: out stays in transformed value space, without scale and mean
  RawTokens raw;
  float* l_packed = nullptr;  // [batch, q_len, heads] the packed tokens' share of the softmax's sum; or null
  void* workspace = nullptr;  // WorkspaceBytes(), planned by PlanAttend for these lengths and window
};

// Whether pages of this format exist, here or in a build with CUDA; looks at numbers, not at memory.
Status CheckFormat(const Pool& pool);

// One architecture and device. kUnsupported names what is there; without CUDA every call answers it.
Status Append(const AppendParams& params, void* stream);
Status Decompress(const DecompressParams& params, void* stream);
Status TransformQueries(const TransformParams& params, void* stream);
Status Merge(const MergeParams& params, void* stream);

// Cuts the work of one step into ranges of tiles, one a thread block; the layers of the step share it. Deterministic:
// the same lengths give the same cut and the same bits.
Status WorkspaceBytes(const AttendParams& params, size_t* bytes);
Status PlanAttend(const AttendParams& params, void* stream);
Status Attend(const AttendParams& params, void* stream);

// The kernel that Attend takes for pool.block, heads, kv_heads and q_len on the current device, and why.
Status Describe(const AttendParams& params, std::string* out);
// Combinations of (k_bits, v_bits, d) that this build holds, as text; "" without CUDA.
const char* KernelList();

}  // namespace tersekv::cuda
