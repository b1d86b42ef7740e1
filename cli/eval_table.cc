// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_table.h"

#include <fmt/format.h>

#include "cli/table.h"

namespace tersekv::cli {

double CompressionRatio(const CacheUsage& usage) {
  return usage.bytes_used == 0 ? 0 : static_cast<double>(usage.bytes_f16) / static_cast<double>(usage.bytes_used);
}

Json ToJson(const EvalRow& row) {
  Json json;
  json["spec"] = row.spec;
  json["bits_spec"] = row.bits_spec;
  json["bits_effective"] = row.usage.bits_effective;
  json["kv_bytes_used"] = row.usage.bytes_used;
  json["kv_bytes_reserved"] = row.usage.bytes_reserved;
  json["kv_bytes_f16"] = row.usage.bytes_f16;
  json["ratio"] = CompressionRatio(row.usage);
  json["ppl"] = row.summary.ppl;
  json["dppl"] = row.summary.ppl / row.reference_ppl - 1;
  json["kl_mean"] = row.summary.kl_mean;
  json["kl_median"] = row.summary.kl_median;
  json["kl_p99"] = row.summary.kl_p99;
  json["kl_max"] = row.summary.kl_max;
  json["top1"] = row.summary.top1;
  json["first_divergence"] = row.summary.first_divergence;
  json["decode_tps"] = row.decode_tps;
  json["prefill_tps"] = row.prefill_tps;
  json["tokens"] = row.tokens;
  json["context"] = row.context;
  json["prefill"] = "decode";
  return json;
}

std::string ToCsv(const std::vector<EvalRow>& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string head, line;
    const Json row = ToJson(rows[r]);
    for (const auto& [name, value] : row.items()) {
      head += (head.empty() ? "" : ",") + name;
      line += (line.empty() ? "" : ",") + (value.is_string() ? value.get<std::string>() : value.dump());
    }
    text += (r == 0 ? head + "\n" : "") + line + "\n";
  }
  return text;
}

std::string ToText(const std::vector<EvalRow>& rows) {
  std::vector<std::vector<std::string>> cells = {{"spec", "bits_spec", "bits_eff", "KV bytes", "ratio", "ppl", "dppl",
                                                  "KL mean", "median", "p99", "max", "top-1", "first div",
                                                  "prefill t/s", "decode t/s"}};
  for (const EvalRow& row : rows) {
    const Summary& s = row.summary;
    cells.push_back({row.spec, fmt::format("{:.3f}", row.bits_spec), fmt::format("{:.3f}", row.usage.bits_effective),
                     fmt::format("{}", row.usage.bytes_used), fmt::format("{:.2f}x", CompressionRatio(row.usage)),
                     fmt::format("{:.3f}", s.ppl), fmt::format("{:+.2f}%", 100 * (s.ppl / row.reference_ppl - 1)),
                     fmt::format("{:.6f}", s.kl_mean), fmt::format("{:.6f}", s.kl_median),
                     fmt::format("{:.5f}", s.kl_p99), fmt::format("{:.4f}", s.kl_max),
                     fmt::format("{:.2f}%", 100 * s.top1),
                     s.first_divergence < 0 ? "none" : fmt::format("{}", s.first_divergence),
                     fmt::format("{:.1f}", row.prefill_tps), fmt::format("{:.1f}", row.decode_tps)});
  }
  return FormatTable(cells);
}

}  // namespace tersekv::cli
