// SPDX-License-Identifier: Apache-2.0
// Which specs CUDA pages hold.
#include <fmt/format.h>

#include "src/api/c_status.h"
#include "src/cuda/params.h"
#include "tersekv/cuda_api.h"
#include "tersekv/spec.h"

namespace {

using tersekv::Family;
using tersekv::KvSpec;
using tersekv::Status;
using tersekv::Unsupported;
using tersekv::c::Guard;
using tersekv::c::Null;
using tersekv::c::Report;

Status Check(const KvSpec& spec) {
  const std::string name = tersekv::FormatSpec(spec);
  const bool raw = spec.k.family == spec.v.family && (spec.k.family == Family::kF16 || spec.k.family == Family::kBF16);
  if (!raw && (spec.k.family != Family::kLloydMax || spec.v.family != Family::kLloydMax)) {
    return Unsupported(fmt::format("{}: CUDA pages hold k<bits>v<bits> (Lloyd-Max), f16 and bf16", name));
  }
  if (!raw && spec.rotation != tersekv::Rotation::kH1) {
    return Unsupported(fmt::format("{}: CUDA kernels rotate with rot=h1", name));
  }
  if (spec.sink != 0 || spec.win != 0) {
    KvSpec packed = spec;
    packed.sink = packed.win = 0;
    return Unsupported(fmt::format("{}: CUDA pages hold no raw sinks or window; say {} and keep raw tokens beside them",
                                   name, tersekv::FormatSpec(packed)));
  }
  if (spec.mean == tersekv::MeanMode::kPage) {
    return Unsupported(fmt::format("{}: CUDA pages have one mean a KV head, not one a page (mean=stats)", name));
  }
  return {};
}

}  // namespace

tersekv_status tersekv_cuda_format_of(const char* spec, int32_t head_dim, tersekv_cuda_format* out) {
  return Guard([&] {
    if (spec == nullptr || out == nullptr) return Null("spec or out");
    const tersekv::Result<KvSpec> parsed = tersekv::ParseSpec(spec);
    if (!parsed) return Report(parsed.error());
    if (const Status status = Check(*parsed); !status.ok()) return Report(status);
    tersekv_cuda_format format = {};
    format.struct_size = sizeof format;
    format.head_dim = head_dim;
    format.k_bits = static_cast<int32_t>(parsed->k.bits);
    format.v_bits = static_cast<int32_t>(parsed->v.bits);
    format.raw_dtype = parsed->k.family == Family::kF16 ? TERSEKV_F16 : TERSEKV_BF16;
    format.k_norm = static_cast<int32_t>(parsed->k.norm);
    format.v_norm = static_cast<int32_t>(parsed->v.norm);
    format.page_tokens = parsed->page;
    format.seed = parsed->seed;
    tersekv::cuda::Pool pool;
    pool.block = {format.k_bits, format.v_bits, head_dim};
    pool.kv_heads = 1;
    pool.page_tokens = format.page_tokens;
    if (const Status status = tersekv::cuda::CheckFormat(pool); !status.ok()) return Report(status);
    *out = format;
    return TERSEKV_OK;
  });
}
