// SPDX-License-Identifier: Apache-2.0
// The C ABI's structs of what the C++ functions take.
#pragma once

#include "src/cuda/params.h"
#include "tersekv/cuda_api.h"
#include "tests/cuda/gpu/harness.h"

namespace tersekv::gpu {

inline void Abi(tersekv_status status) {
  if (status == TERSEKV_OK) return;
  std::printf("%s\n", tersekv_last_error());
  std::exit(1);
}

inline int64_t BytesOf(cuda::Type type) { return type == cuda::Type::kF32 ? 4 : 2; }

inline tersekv_cuda_rows RowsOf(const cuda::Rows& rows) {
  const int64_t bytes = BytesOf(rows.type);
  return {rows.data, static_cast<int32_t>(rows.type), rows.batch_stride * bytes, rows.token_stride * bytes,
          rows.head_stride * bytes};
}

inline tersekv_cuda_format FormatOf(const cuda::Pool& pool) {
  tersekv_cuda_format f = {};
  f.struct_size = sizeof f;
  f.head_dim = pool.block.d;
  f.k_bits = pool.block.k_bits;
  f.v_bits = pool.block.v_bits;
  f.raw_dtype = pool.bf16 ? TERSEKV_BF16 : TERSEKV_F16;
  f.k_norm = TERSEKV_NORM_UNBIASED;
  f.v_norm = TERSEKV_NORM_LS;
  f.page_tokens = pool.page_tokens;
  f.seed = pool.seed;
  return f;
}

inline tersekv_cuda_pool PoolOf(const cuda::Pool& pool, const tersekv_cuda_format* format, void* pages) {
  tersekv_cuda_pool p = {};
  p.struct_size = sizeof p;
  p.format = format;
  p.pages = pages;
  p.kv_heads = pool.kv_heads;
  p.layer = pool.layer;
  p.k_mean = pool.k.mean, p.k_scale = pool.k.scale, p.k_inv_scale = pool.k.inv_scale;
  p.v_mean = pool.v.mean, p.v_scale = pool.v.scale, p.v_inv_scale = pool.v.inv_scale;
  return p;
}

inline tersekv_cuda_raw RawOf(const cuda::RawTokens& raw, const tersekv_cuda_pool* pool) {
  return {sizeof(tersekv_cuda_raw), raw.sink, raw.window, raw.packed_from, pool, raw.table,
          raw.table_stride,         raw.begin};
}

}  // namespace tersekv::gpu
