// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "src/api/cuda_convert.h"

namespace {

using tersekv::InvalidArgument;
using tersekv::Status;
using tersekv::c::CheckFormat;
using tersekv::c::CheckSize;
using tersekv::c::Guard;
using tersekv::c::Null;
using tersekv::c::PoolOf;
using tersekv::c::Report;
using tersekv::c::Stream;
using tersekv::c::ToPool;
using tersekv::c::ToRows;
namespace cuda = tersekv::cuda;

static_assert(static_cast<int>(cuda::Type::kF32) == TERSEKV_F32 && static_cast<int>(cuda::Type::kF16) == TERSEKV_F16 &&
              static_cast<int>(cuda::Type::kBF16) == TERSEKV_BF16);
static_assert(static_cast<int>(tersekv::NormMode::kNone) == TERSEKV_NORM_NONE &&
              static_cast<int>(tersekv::NormMode::kMatch) == TERSEKV_NORM_MATCH &&
              static_cast<int>(tersekv::NormMode::kLs) == TERSEKV_NORM_LS &&
              static_cast<int>(tersekv::NormMode::kUnbiased) == TERSEKV_NORM_UNBIASED);

// AppendParams and DecompressParams have these members.
template <class Params>
tersekv_status ToTokens(const tersekv_cuda_tokens* from, Params* to) {
  if (from == nullptr) return Null("tokens");
  if (auto s = CheckSize("tersekv_cuda_tokens", from->struct_size, sizeof *from); s != TERSEKV_OK) return s;
  if (auto s = ToPool(from->pool, &to->pool); s != TERSEKV_OK) return s;
  if (auto s = ToRows("k", from->k, &to->k); s != TERSEKV_OK) return s;
  if (auto s = ToRows("v", from->v, &to->v); s != TERSEKV_OK) return s;
  to->slots = from->slots;
  to->tokens = from->tokens;
  return TERSEKV_OK;
}

tersekv_status ToRaw(const tersekv_cuda_raw& from, const cuda::Pool& packed, cuda::RawTokens* to) {
  if (auto s = CheckSize("tersekv_cuda_raw", from.struct_size, sizeof from); s != TERSEKV_OK) return s;
  cuda::Pool pool;
  if (auto s = ToPool(from.pool, &pool); s != TERSEKV_OK) return s;
  if (pool.block.scaled() || pool.block.k_bits != pool.block.v_bits) {
    return Report(InvalidArgument(fmt::format("raw.pool holds {} and {} bits: raw rows are \"f16\" or \"bf16\"",
                                              pool.block.k_bits, pool.block.v_bits)));
  }
  if (pool.block.d != packed.block.d || pool.kv_heads != packed.kv_heads) {
    return Report(InvalidArgument(fmt::format("raw.pool: head_dim {} and {} KV heads beside {} and {} of pool",
                                              pool.block.d, pool.kv_heads, packed.block.d, packed.kv_heads)));
  }
  if (pool.data == nullptr) return Null("raw.pool.pages");
  *to = {pool.data,  pool.bf16, pool.page_tokens, from.table,      from.table_stride,
         from.begin, from.sink, from.window,      from.packed_from};
  return TERSEKV_OK;
}

// What the struct ended with when it came.
constexpr size_t kFirstAttention = offsetof(tersekv_cuda_attention, l_packed);

tersekv_status ToAttention(const tersekv_cuda_attention* from, cuda::AttendParams* to) {
  if (from == nullptr) return Null("attention");
  const bool first = from->struct_size == kFirstAttention;
  if (auto s = CheckSize("tersekv_cuda_attention", from->struct_size, first ? kFirstAttention : sizeof *from);
      s != TERSEKV_OK) {
    return s;
  }
  if (auto s = ToPool(from->pool, &to->pool); s != TERSEKV_OK) return s;
  if (auto s = ToRows("q", from->q, &to->q); s != TERSEKV_OK) return s;
  if (auto s = ToRows("out", from->out, &to->out); s != TERSEKV_OK) return s;
  to->lse = from->lse;
  to->lengths = from->lengths;
  to->block_table = from->block_table;
  to->table_stride = from->table_stride;
  to->batch = from->batch;
  to->heads = from->heads;
  to->q_len = from->q_len;
  to->scale = from->scale;
  to->window = from->window;
  to->softcap = from->softcap;
  to->alibi_slopes = from->alibi_slopes;
  to->sinks = from->sinks;
  to->rotate_out = from->transformed_out == 0;
  to->workspace = from->workspace;
  if (first) return TERSEKV_OK;
  to->l_packed = from->l_packed;
  return from->raw == nullptr ? TERSEKV_OK : ToRaw(*from->raw, to->pool, &to->raw);
}

}  // namespace

extern "C" {

size_t tersekv_cuda_page_bytes(const tersekv_cuda_format* format, int32_t kv_heads) {
  const auto bytes = [&]() -> size_t {
    if (CheckFormat(format) != TERSEKV_OK || kv_heads <= 0) return 0;
    const cuda::Pool pool = PoolOf(*format, kv_heads);
    return cuda::CheckFormat(pool).ok() ? pool.page_bytes() : 0;
  };
  return Guard(bytes, size_t{0});
}

tersekv_status tersekv_cuda_append(const tersekv_cuda_tokens* tokens, uint64_t stream) {
  return Guard([&] {
    cuda::AppendParams p;
    if (auto s = ToTokens(tokens, &p); s != TERSEKV_OK) return s;
    p.k_norm = static_cast<tersekv::NormMode>(tokens->pool->format->k_norm);
    p.v_norm = static_cast<tersekv::NormMode>(tokens->pool->format->v_norm);
    p.not_finite = tokens->not_finite;
    return Report(cuda::Append(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_decompress(const tersekv_cuda_tokens* tokens, uint64_t stream) {
  return Guard([&] {
    cuda::DecompressParams p;
    if (auto s = ToTokens(tokens, &p); s != TERSEKV_OK) return s;
    return Report(cuda::Decompress(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_workspace_bytes(const tersekv_cuda_attention* attention, size_t* out) {
  return Guard([&] {
    if (out == nullptr) return Null("out");
    cuda::AttendParams p;
    if (auto s = ToAttention(attention, &p); s != TERSEKV_OK) return s;
    return Report(cuda::WorkspaceBytes(p, out));
  });
}

tersekv_status tersekv_cuda_plan(const tersekv_cuda_attention* attention, uint64_t stream) {
  return Guard([&] {
    cuda::AttendParams p;
    if (auto s = ToAttention(attention, &p); s != TERSEKV_OK) return s;
    return Report(cuda::PlanAttend(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_attend(const tersekv_cuda_attention* attention, uint64_t stream) {
  return Guard([&] {
    cuda::AttendParams p;
    if (auto s = ToAttention(attention, &p); s != TERSEKV_OK) return s;
    return Report(cuda::Attend(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_describe(const tersekv_cuda_format* format, int32_t heads, int32_t kv_heads, int32_t q_len,
                                     char* out, size_t size) {
  return Guard([&] {
    if (auto s = CheckFormat(format); s != TERSEKV_OK) return s;
    if (out == nullptr || size == 0) return Null("out");
    cuda::AttendParams p;
    p.pool = PoolOf(*format, kv_heads);
    p.batch = 1;
    p.heads = heads;
    p.q_len = q_len;
    std::string text;
    if (const Status status = cuda::Describe(p, &text); !status.ok()) return Report(status);
    const size_t n = std::min(text.size(), size - 1);
    std::memcpy(out, text.data(), n);
    out[n] = '\0';
    return TERSEKV_OK;
  });
}

const char* tersekv_cuda_kernels(void) { return cuda::KernelList(); }

}  // extern "C"
