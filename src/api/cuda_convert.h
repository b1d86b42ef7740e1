// SPDX-License-Identifier: Apache-2.0
// Structs of tersekv/cuda_api.h as those of src/cuda/params.h; what is no such struct is reported.
#pragma once

#include <fmt/format.h>

#include "src/api/c_status.h"
#include "src/cuda/params.h"
#include "tersekv/cuda_api.h"

namespace tersekv::c {

inline tersekv_status CheckFormat(const tersekv_cuda_format* format) {
  if (format == nullptr) return Null("format");
  if (auto s = CheckSize("tersekv_cuda_format", format->struct_size, sizeof *format); s != TERSEKV_OK) return s;
  for (const int32_t norm : {format->k_norm, format->v_norm}) {
    if (norm < TERSEKV_NORM_NONE || norm > TERSEKV_NORM_UNBIASED) {
      return Report(InvalidArgument(fmt::format("norm {}: 0 (none) to 3 (unbiased) are known", norm)));
    }
  }
  if (format->raw_dtype != TERSEKV_F16 && format->raw_dtype != TERSEKV_BF16) {
    return Report(InvalidArgument(fmt::format("raw_dtype {}: raw pages hold f16 (1) or bf16 (2)", format->raw_dtype)));
  }
  return TERSEKV_OK;
}

inline cuda::Pool PoolOf(const tersekv_cuda_format& format, int32_t kv_heads) {
  cuda::Pool pool;
  pool.block = {format.k_bits, format.v_bits, format.head_dim};
  pool.bf16 = format.raw_dtype == TERSEKV_BF16;
  pool.kv_heads = kv_heads;
  pool.page_tokens = format.page_tokens;
  pool.seed = format.seed;
  return pool;
}

inline tersekv_status ToPool(const tersekv_cuda_pool* from, cuda::Pool* pool) {
  if (from == nullptr) return Null("pool");
  if (auto s = CheckSize("tersekv_cuda_pool", from->struct_size, sizeof *from); s != TERSEKV_OK) return s;
  if (auto s = CheckFormat(from->format); s != TERSEKV_OK) return s;
  *pool = PoolOf(*from->format, from->kv_heads);
  pool->data = static_cast<uint8_t*>(from->pages);
  pool->layer = from->layer;
  pool->k = {from->k_mean, from->k_scale, from->k_inv_scale};
  pool->v = {from->v_mean, from->v_scale, from->v_inv_scale};
  return TERSEKV_OK;
}

inline tersekv_status ToRows(const char* name, const tersekv_cuda_rows& from, cuda::Rows* rows) {
  if (from.dtype < TERSEKV_F32 || from.dtype > TERSEKV_BF16) {
    return Report(
        InvalidArgument(fmt::format("{}.dtype is {}: 0 (f32), 1 (f16) and 2 (bf16) are known", name, from.dtype)));
  }
  const int64_t bytes = from.dtype == TERSEKV_F32 ? 4 : 2;
  for (const int64_t stride : {from.batch_stride, from.token_stride, from.head_stride}) {
    if (stride % 16 != 0) {
      return Report(InvalidArgument(fmt::format("{}: a stride of {} bytes is no multiple of 16", name, stride)));
    }
  }
  *rows = {from.data, static_cast<cuda::Type>(from.dtype), from.batch_stride / bytes, from.token_stride / bytes,
           from.head_stride / bytes};
  return TERSEKV_OK;
}

inline void* Stream(uint64_t stream) { return reinterpret_cast<void*>(static_cast<uintptr_t>(stream)); }

}  // namespace tersekv::c
