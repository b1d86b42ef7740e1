// SPDX-License-Identifier: Apache-2.0
#include "src/api/cuda_convert.h"
#include "src/cuda/latent.h"

namespace {

using tersekv::InvalidArgument;
using tersekv::c::CheckSize;
using tersekv::c::Guard;
using tersekv::c::Null;
using tersekv::c::Report;
using tersekv::c::Stream;
using tersekv::c::ToRows;
namespace cuda = tersekv::cuda;

tersekv_status ToLatents(const tersekv_cuda_latents* from, cuda::LatentPool* pool) {
  if (from == nullptr) return Null("latents");
  if (auto s = CheckSize("tersekv_cuda_latents", from->struct_size, sizeof *from); s != TERSEKV_OK) return s;
  if (from->norm < TERSEKV_NORM_NONE || from->norm > TERSEKV_NORM_UNBIASED) {
    return Report(InvalidArgument(fmt::format("norm {}: 0 (none) to 3 (unbiased) are known", from->norm)));
  }
  pool->data = static_cast<uint8_t*>(from->pages);
  pool->block = {from->bits};
  pool->page_tokens = from->page_tokens;
  pool->seed = from->seed;
  pool->layer = from->layer;
  pool->stats = {from->mean, from->scale, from->inv_scale};
  return TERSEKV_OK;
}

tersekv_status ToAttention(const tersekv_cuda_latent_attention* from, cuda::LatentAttendParams* to) {
  if (from == nullptr) return Null("attention");
  if (auto s = CheckSize("tersekv_cuda_latent_attention", from->struct_size, sizeof *from); s != TERSEKV_OK) return s;
  if (auto s = ToLatents(from->latents, &to->pool); s != TERSEKV_OK) return s;
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
  to->workspace = from->workspace;
  return TERSEKV_OK;
}

}  // namespace

extern "C" {

size_t tersekv_cuda_latent_page_bytes(const tersekv_cuda_latents* latents) {
  const auto bytes = [&]() -> size_t {
    cuda::LatentPool pool;
    if (ToLatents(latents, &pool) != TERSEKV_OK) return 0;
    return cuda::CheckLatentFormat(pool).ok() ? pool.page_bytes() : 0;
  };
  return Guard(bytes, size_t{0});
}

tersekv_status tersekv_cuda_latent_append(const tersekv_cuda_latent_tokens* tokens, uint64_t stream) {
  return Guard([&] {
    if (tokens == nullptr) return Null("tokens");
    if (auto s = CheckSize("tersekv_cuda_latent_tokens", tokens->struct_size, sizeof *tokens); s != TERSEKV_OK) {
      return s;
    }
    cuda::LatentAppendParams p;
    if (auto s = ToLatents(tokens->latents, &p.pool); s != TERSEKV_OK) return s;
    if (auto s = ToRows("latent", tokens->latent, &p.latent); s != TERSEKV_OK) return s;
    if (auto s = ToRows("rotary", tokens->rotary, &p.rotary); s != TERSEKV_OK) return s;
    p.norm = static_cast<tersekv::NormMode>(tokens->latents->norm);
    p.slots = tokens->slots;
    p.tokens = tokens->tokens;
    p.not_finite = tokens->not_finite;
    return Report(cuda::LatentAppend(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_latent_workspace_bytes(const tersekv_cuda_latent_attention* attention, size_t* out) {
  return Guard([&] {
    if (out == nullptr) return Null("out");
    cuda::LatentAttendParams p;
    if (auto s = ToAttention(attention, &p); s != TERSEKV_OK) return s;
    return Report(cuda::LatentWorkspaceBytes(p, out));
  });
}

tersekv_status tersekv_cuda_latent_attend(const tersekv_cuda_latent_attention* attention, uint64_t stream) {
  return Guard([&] {
    cuda::LatentAttendParams p;
    if (auto s = ToAttention(attention, &p); s != TERSEKV_OK) return s;
    return Report(cuda::LatentAttend(p, Stream(stream)));
  });
}

}  // extern "C"
