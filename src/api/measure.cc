// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/codec/head_codec.h"
#include "src/codec/list.h"
#include "src/codec/row_statistics.h"
#include "tersekv/codec.h"

namespace tersekv {

Result<double> MeasureDistortion(const VectorCodec& codec, const float* rows, size_t n) {
  const size_t values = n * static_cast<size_t>(codec.head_dim());
  if (n % codec.record_rows() != 0) {
    return InvalidArgument(fmt::format("{} rows: this codec takes multiples of {}", n, codec.record_rows()));
  }
  std::vector<uint8_t> records(n / codec.record_rows() * codec.record_bytes());
  if (Status s = codec.Encode(rows, n, records.data()); !s.ok()) return s;
  std::vector<float> back(values);
  codec.Decode(records.data(), n, back.data());
  double error = 0, power = 0;
  for (size_t i = 0; i < values; ++i) {
    const double x = rows[i], difference = x - static_cast<double>(back[i]);
    error += difference * difference;
    power += x * x;
  }
  return power > 0 ? error / power : 0;
}

RowStats MeasureRowStats(const KvSpec& spec, Kv side, int head_dim, const float* rows, size_t n) {
  TERSEKV_CHECK(head_dim > 0);
  RowStats stats;
  if (n == 0) return stats;
  const size_t d = static_cast<size_t>(head_dim);
  std::vector<float> inverse(d, 1.0f);
  if (spec.mean == MeanMode::kStats) {
    stats.mean.resize(d);
    RowMean(rows, n, head_dim, stats.mean.data());
    if (side == Kv::kK && spec.scale) {
      stats.scale.resize(d);
      RowScale(rows, n, head_dim, stats.mean.data(), stats.scale.data(), inverse.data());
    }
  }
  if (SharedScaleOf(spec.k.family) == SharedScale::kNone) return stats;
  const RotationKind kind = RotationKindOf(spec.rotation);
  const RotationOp rotation(kind, spec.seed, 0, 0, side == Kv::kV, head_dim,
                            kind == RotationKind::kHaar ? HaarMatrix(spec.seed, head_dim) : nullptr);
  HeadCodec codec;
  codec.d = head_dim;
  codec.rotation = &rotation;
  codec.mean = stats.mean.empty() ? nullptr : stats.mean.data();
  codec.inv_scale = inverse.data();
  std::vector<float> row(d), scratch(d);
  const float peak = RowPeak(codec, rows, n, row.data(), scratch.data());
  stats.scale.resize(d, 1.0f);
  ApplySharedScale(SharedScaleOfPeak(peak), head_dim, stats.scale.data(), inverse.data());
  return stats;
}

}  // namespace tersekv
