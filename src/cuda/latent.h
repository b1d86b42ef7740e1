// SPDX-License-Identifier: Apache-2.0
// Latents of multi-head latent attention: one row of 512 packed and 64 rotary channels a token serves keys and values
// of all heads (docs/decisions/0010-latents.md). What the kernels take, as in params.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/params.h"

namespace tersekv::cuda {

inline constexpr int kLatent = 512;  // packed: keys and values
inline constexpr int kRotary = 64;   // f16, keys only
inline constexpr int kLatentKey = kLatent + kRotary;

// pool = [pages][page_tokens / 16] blocks of 16 tokens: codes in the places of K's (layout.h) | 16 bf16 scales |
// 16 rows of 64 rotary values in f16.
struct LatentLayout {
  int bits = 4;

  constexpr int scales() const { return CodeBytes(bits, kLatent); }
  constexpr int rotary() const { return scales() + 2 * kBlockTokens; }
  constexpr int bytes() const { return rotary() + 2 * kBlockTokens * kRotary; }
  // The packed part, for what reads and writes codes.
  constexpr BlockLayout codes() const { return {bits, 0, kLatent}; }
};

struct LatentPool {
  uint8_t* data = nullptr;  // 16-byte aligned
  LatentLayout block;
  int page_tokens = 64;  // a power of two, at least 16
  uint64_t seed = 0;     // of the signs: K's of KV head 0
  int layer = 0;
  SideStats stats;  // [512]

  size_t page_bytes() const { return static_cast<size_t>(page_tokens / kBlockTokens * block.bytes()); }
};

struct LatentAppendParams {
  LatentPool pool;
  NormMode norm = NormMode::kUnbiased;
  Rows latent, rotary;             // [tokens, 512] and [tokens, 64]
  const int64_t* slots = nullptr;  // [tokens]: page * page_tokens + place, each once; below 0: the token is left out
  int tokens = 0;
  int* not_finite = nullptr;  // set to 1 when a row is not finite in its 512 channels or as f16 in the others; or null
};

struct LatentAttendParams {
  LatentPool pool;
  Rows q;                                // [batch, q_len, heads, 576]; the newest q_len tokens of each sequence
  Rows out;                              // [batch, q_len, heads, 512]
  float* lse = nullptr;                  // [batch, q_len, heads], or null
  const int32_t* lengths = nullptr;      // [batch] tokens of each sequence, those of q included
  const int32_t* block_table = nullptr;  // [batch, table_stride] page ids
  int64_t table_stride = 0;
  int batch = 0, heads = 0, q_len = 1;
  float scale = 1;
  void* workspace = nullptr;  // LatentWorkspaceBytes()
};

Status CheckLatentFormat(const LatentPool& pool);
Status LatentAppend(const LatentAppendParams& params, void* stream);
Status LatentWorkspaceBytes(const LatentAttendParams& params, size_t* bytes);
// Two launches; the same lengths give the same bits.
Status LatentAttend(const LatentAttendParams& params, void* stream);

}  // namespace tersekv::cuda
