// SPDX-License-Identifier: Apache-2.0
// DescribeAttention: the choice that TileWork makes (src/cpu/tile_work-inl.h: Integers, Fast), in words.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "src/codec/list.h"
#include "src/cpu/attend.h"
#include "tersekv/cache.h"
#include "tersekv/codec.h"

namespace tersekv {
namespace {

std::string Side(const char* name, const SideSpec& side, const CacheConfig& config) {
  const FamilyRow& row = RowOf(side.family);
  const std::string what = fmt::format("{}: {:g}-bit {}", name, side.bits, row.name);
  if (row.storage == Storage::kRows) return what + " as fp32";
  if (row.storage == Storage::kRecords) return what + ", decoded to fp32 tiles (records have no integer kernels)";
  if (config.spec.mean == MeanMode::kPage) return what + ", codes as fp32 (mean=page)";
  switch (config.arithmetic) {
    case Arithmetic::kExact:
      return what + ", codes as fp32 (exact)";
    case Arithmetic::kFast:
      return what + (side.bits <= kFastBits ? ", codes times 8-bit integers (fast)"
                                            : ", codes times 16-bit integers (more than 4 bits)");
    case Arithmetic::kInt16:
      break;
  }
  return what + ", codes times 16-bit integers (int16)";
}

}  // namespace

Result<std::string> DescribeAttention(const CacheConfig& config) {
  auto cache = KvCache::Create(config);  // refuses what a host would be refused
  if (!cache) return cache.error();
  const auto targets = SimdTargets();
  const bool latent =
      std::any_of(config.layers.begin(), config.layers.end(), [](const LayerShape& shape) { return shape.latent; });
  return fmt::format("cpu, {}; {}; {}{}", targets.empty() ? "no SIMD target" : targets.front(),
                     Side("K", config.spec.k, config), Side("V", config.spec.v, config),
                     latent ? "; layers with a latent: K's codes as fp32, for keys and values" : "");
}

}  // namespace tersekv
