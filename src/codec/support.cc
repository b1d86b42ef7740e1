// SPDX-License-Identifier: Apache-2.0
// CheckSupported and BitsSpec.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "src/base/check.h"
#include "src/codec/list.h"
#include "src/codec/spec_rules.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

// The spec of this version with no fewer bits than `spec`, as far as there is one.
std::string NearestAvailable(const KvSpec& spec) {
  const auto nearest = [](const SideSpec& side) {
    if (side.family == Family::kAuto) return 4.F;
    return std::clamp(std::ceil(side.bits), kLloydMaxWidths.first, kLloydMaxWidths.last);
  };
  return FormatSpec(DefaultsOf(Family::kLloydMax, nearest(spec.k), Family::kLloydMax, nearest(spec.v), 0));
}

// Bits a value of one side of a kNvN or a format: codes, block scales, scales of the vector.
double SideBits(const SideSpec& side, int head_dim) {
  const FamilyRow& row = RowOf(side.family);
  return static_cast<double>(side.bits) + static_cast<double>(row.block_bits) +
         static_cast<double>(row.vector_bits) / head_dim;
}

}  // namespace

Status CheckSupported(const KvSpec& spec) {
  TERSEKV_RETURN_IF_ERROR(ValidateSpec(spec));
  if (spec.raw()) return {};
  const std::string text = FormatSpec(spec);
  if (spec.k.family == Family::kAuto) {
    return Unsupported(fmt::format("'{}': auto needs a probe or a profile, which this version doesn't have; use {}",
                                   text, NearestAvailable(spec)));
  }
  for (const Family family : {spec.k.family, spec.v.family}) {
    const FamilyRow& row = RowOf(family);
    if (row.available) continue;
    return Unsupported(fmt::format("'{}': {} codecs are not in this version; {} is the nearest that is", text, row.name,
                                   NearestAvailable(spec)));
  }
  if (spec.mean == MeanMode::kPage) {
    return Unsupported(fmt::format("'{}': mean=page is not in this version; use mean=stats", text));
  }
  if (spec.mean == MeanMode::kProfile) {
    return Unsupported(
        fmt::format("'{}': mean=profile needs a profile, which this version can't load; use mean=stats", text));
  }
  if (spec.scale && spec.mean != MeanMode::kStats) {
    return Unsupported(
        fmt::format("'{}': scale=on needs the statistics of mean=stats; add scale=off or use mean=stats", text));
  }
  return {};
}

double BitsSpec(const KvSpec& spec, int head_dim_k, int head_dim_v) {
  TERSEKV_CHECK(head_dim_k > 0 && head_dim_v > 0);
  TERSEKV_CHECK(ValidateSpec(spec).ok());
  double k = SideBits(spec.k, head_dim_k);
  double v = SideBits(spec.v, head_dim_v);
  if (spec.k.family ==
      Family::kKivi) {  // f16 scale and zero: K for each channel of a page, V for each group of a token
    const int group = spec.group == 0 ? head_dim_v : std::min(spec.group, head_dim_v);
    k += 32.0 / spec.page;
    v += 32.0 / group;
  }
  return (k * head_dim_k + v * head_dim_v) / (head_dim_k + head_dim_v);
}

}  // namespace tersekv
