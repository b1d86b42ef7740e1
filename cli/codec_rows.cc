// SPDX-License-Identifier: Apache-2.0
#include "cli/codec_rows.h"

#include <fmt/format.h>

#include <utility>

#include "cli/table.h"
#include "tersekv/codec.h"

namespace tersekv::cli {
namespace {

// Mean square of the rows, and about the mean of each channel.
std::pair<double, double> Power(const Rows& rows, size_t n) {
  const size_t d = static_cast<size_t>(rows.head_dim);
  double all = 0, centred = 0;
  for (size_t c = 0; c < d; ++c) {
    double sum = 0, square = 0;
    for (size_t t = 0; t < n; ++t) {
      const double x = rows.values[t * d + c];
      sum += x;
      square += x * x;
    }
    all += square;
    centred += square - sum * sum / static_cast<double>(n);
  }
  return {all, centred};
}

}  // namespace

Status CheckRowSpec(const KvSpec& spec) {
  if (spec.mean != MeanMode::kProfile) return {};
  return Unsupported(
      fmt::format("'{}': rows have no profile; mean=stats measures their own mean, and with scale=on their scale",
                  FormatSpec(spec)));
}

Result<Json> DistortionOfRows(const std::vector<std::string>& specs, const Rows& rows) {
  Json json = Json::array();
  for (const std::string& name : specs) {
    const auto spec = ParseSpec(name);
    if (!spec) return spec.error();
    if (Status s = CheckRowSpec(*spec); !s.ok()) return s;
    for (const Kv side : {Kv::kK, Kv::kV}) {
      auto codec = VectorCodec::Create(*spec, side, rows.head_dim, 0, 0,
                                       MeasureRowStats(*spec, side, rows.head_dim, rows.values.data(), rows.n));
      if (!codec) return codec.error();
      const size_t n = rows.n / (*codec)->record_rows() * (*codec)->record_rows();
      if (n == 0) {
        return InvalidArgument(
            fmt::format("{} rows are too few for {}: it takes {} at once", rows.n, name, (*codec)->record_rows()));
      }
      const auto distortion = MeasureDistortion(**codec, rows.values.data(), n);
      if (!distortion) return distortion.error();
      const auto [all, centred] = Power(rows, n);
      Json row;
      row["spec"] = name;
      row["side"] = side == Kv::kK ? "k" : "v";
      row["head_dim"] = rows.head_dim;
      row["rows"] = n;
      row["bits"] = 8 * static_cast<double>((*codec)->record_bytes()) /
                    static_cast<double>((*codec)->record_rows() * static_cast<size_t>(rows.head_dim));
      row["code_bits"] = (side == Kv::kK ? spec->k : spec->v).bits;
      row["d"] = *distortion;
      row["d_centred"] = centred > 0 ? Json(*distortion * all / centred) : Json();
      json.push_back(row);
    }
  }
  return json;
}

std::string DistortionTable(const Json& rows) {
  std::vector<std::vector<std::string>> cells = {{"spec", "side", "bits", "D", "D about the mean"}};
  for (const Json& row : rows) {
    cells.push_back({row["spec"].get<std::string>(), row["side"].get<std::string>(),
                     fmt::format("{:g}", row["bits"].get<double>()), fmt::format("{:.4g}", row["d"].get<double>()),
                     row["d_centred"].is_null() ? "-" : fmt::format("{:.4g}", row["d_centred"].get<double>())});
  }
  return FormatTable(cells, {0, 1});
}

}  // namespace tersekv::cli
