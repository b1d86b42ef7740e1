// SPDX-License-Identifier: Apache-2.0
// CheckSupported and BitsSpec.
#include <fmt/format.h>

#include <string>

#include "src/base/check.h"
#include "src/codec/list.h"
#include "src/codec/record_list.h"
#include "src/codec/spec_rules.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

// Bits a value of one side: codes and scales.
double SideBits(const KvSpec& spec, Kv kv, int head_dim) {
  const SideSpec& side = kv == Kv::kK ? spec.k : spec.v;
  double bits = static_cast<double>(side.bits);
  if (StorageOf(side.family) == Storage::kCodes) bits += 16.0 / head_dim;
  WithRecordTag(side.family, kv, [&](auto tag) {
    const double values = static_cast<double>(head_dim) * (tag.kPage ? spec.page : 1);
    bits = 8 * static_cast<double>(tag.Bytes(RecordShapeOf(spec, kv, head_dim))) / values;
  });
  return spec.mean == MeanMode::kPage ? bits + 16.0 / spec.page : bits;
}

}  // namespace

Status CheckSupported(const KvSpec& spec) {
  TERSEKV_RETURN_IF_ERROR(ValidateSpec(spec));
  if (spec.raw()) return {};
  const std::string text = FormatSpec(spec);
  if (spec.k.family == Family::kAuto) {
    return Unsupported(fmt::format(
        "'{}': auto is what a profile recommends and a host puts in its place; without one use k4v4", text));
  }
  if (spec.scale && spec.mean == MeanMode::kOff) {
    return Unsupported(fmt::format("'{}': scale=on needs a mean; add scale=off or use mean=stats", text));
  }
  return {};
}

double BitsSpec(const KvSpec& spec, int head_dim_k, int head_dim_v) {
  TERSEKV_CHECK(head_dim_k > 0 && head_dim_v > 0);
  TERSEKV_CHECK(ValidateSpec(spec).ok());
  const double k = SideBits(spec, Kv::kK, head_dim_k), v = SideBits(spec, Kv::kV, head_dim_v);
  return (k * head_dim_k + v * head_dim_v) / (head_dim_k + head_dim_v);
}

KvSpec LayerSpec(const CacheConfig& config, size_t layer) {
  KvSpec spec = config.spec;
  if (config.layer_bits.empty()) return spec;
  spec.k.bits = static_cast<float>(config.layer_bits[layer].k);
  spec.v.bits = static_cast<float>(config.layer_bits[layer].v);
  return spec;
}

double BitsSpec(const CacheConfig& config) {
  double bits = 0, values = 0;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerShape& shape = config.layers[l];
    if (shape.latent) {  // its rotary part is f16; a raw latent is that of K
      const KvSpec spec = LayerSpec(config, l);
      const double latent = SideBits(spec, Kv::kK, shape.head_dim_v) * shape.head_dim_v;
      const double rotary = spec.raw() ? SideBits(spec, Kv::kK, shape.head_dim_v) : 16;
      bits += latent + rotary * (shape.head_dim_k - shape.head_dim_v);
      values += shape.head_dim_k;
      continue;
    }
    const double n = static_cast<double>(shape.kv_heads) * (shape.head_dim_k + shape.head_dim_v);
    bits += n * BitsSpec(LayerSpec(config, l), shape.head_dim_k, shape.head_dim_v);
    values += n;
  }
  return bits / values;
}

}  // namespace tersekv
