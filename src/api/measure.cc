// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "src/base/check.h"
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
  if (spec.mean != MeanMode::kStats || n == 0) return stats;
  stats.mean.resize(static_cast<size_t>(head_dim));
  RowMean(rows, n, head_dim, stats.mean.data());
  if (side == Kv::kV || !spec.scale) return stats;
  stats.scale.resize(stats.mean.size());
  std::vector<float> inverse(stats.mean.size());
  RowScale(rows, n, head_dim, stats.mean.data(), stats.scale.data(), inverse.data());
  return stats;
}

}  // namespace tersekv
