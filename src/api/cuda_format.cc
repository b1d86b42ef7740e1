// SPDX-License-Identifier: Apache-2.0
// Which specs CUDA pages hold.
#include <fmt/format.h>

#include "src/api/c_status.h"
#include "src/cuda/params.h"
#include "tersekv/cuda_api.h"
#include "tersekv/spec.h"

namespace {

using tersekv::Family;
using tersekv::InvalidArgument;
using tersekv::Kv;
using tersekv::KvSpec;
using tersekv::Status;
using tersekv::Unsupported;
using tersekv::c::CheckSize;
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
    return Unsupported(fmt::format(
        "{}: CUDA pages hold no raw sinks or window; say {} and give raw tokens a pool beside it (tersekv_cuda_raw)",
        name, tersekv::FormatSpec(packed)));
  }
  if (spec.mean == tersekv::MeanMode::kPage) {
    return Unsupported(fmt::format("{}: CUDA pages have one mean a KV head, not one a page (mean=stats)", name));
  }
  return {};
}

Status NoFormat() { return InvalidArgument("this is no format of CUDA pages: fill it with tersekv_cuda_format_of"); }

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

tersekv_status tersekv_cuda_block_of(const tersekv_cuda_format* format, tersekv_cuda_block* out) {
  return Guard([&] {
    if (out == nullptr) return Null("out");
    if (auto s = CheckSize("tersekv_cuda_block", out->struct_size, sizeof *out); s != TERSEKV_OK) return s;
    if (tersekv_cuda_page_bytes(format, 1) == 0) return Report(NoFormat());
    const tersekv::cuda::BlockLayout block{format->k_bits, format->v_bits, format->head_dim};
    out->block_bytes = block.bytes();
    out->k_codes = block.codes(Kv::kK);
    out->v_codes = block.codes(Kv::kV);
    out->k_scales = block.scales(Kv::kK);
    out->v_scales = block.scales(Kv::kV);
    return TERSEKV_OK;
  });
}

tersekv_status tersekv_cuda_bit_places(const tersekv_cuda_format* format, int32_t side, int32_t* places, size_t count) {
  return Guard([&] {
    if (places == nullptr) return Null("places");
    if (tersekv_cuda_page_bytes(format, 1) == 0) return Report(NoFormat());
    if (side != 0 && side != 1) {
      return Report(InvalidArgument(fmt::format("side {}: 0 (K) and 1 (V) are known", side)));
    }
    const Kv kv = side == 0 ? Kv::kK : Kv::kV;
    const int bits = side == 0 ? format->k_bits : format->v_bits, d = format->head_dim;
    const size_t need = static_cast<size_t>(tersekv::cuda::kBlockTokens * d * bits);
    if (count != need) {
      return Report(InvalidArgument(fmt::format("room for {} places: this side has {}", count, need)));
    }
    for (int token = 0; token < tersekv::cuda::kBlockTokens; ++token) {
      for (int channel = 0; channel < d; ++channel) {
        const tersekv::cuda::Place at = tersekv::cuda::PlaceOf(kv, token, channel);
        int32_t* to = places + static_cast<size_t>(token * d + channel) * static_cast<size_t>(bits);
        tersekv::cuda::ForEachPiece(bits, kv, at.unit, at.e, [&](int word, int bit, int width, int shift) {
          const int byte = at.group * tersekv::cuda::GroupBytes(bits) + tersekv::cuda::WordOffset(bits, at.lane, word);
          for (int i = 0; i < width; ++i) to[shift + i] = 8 * byte + bit + i;
        });
      }
    }
    return TERSEKV_OK;
  });
}

int32_t tersekv_cuda_stored_code(int32_t bits, int32_t code) {
  if (!tersekv::cuda::BitsSupported(bits) || bits > 8 || code < 0 || code >= 1 << bits) return -1;
  return tersekv::cuda::StoredCode(bits, code) & ((1 << bits) - 1);
}
