// SPDX-License-Identifier: Apache-2.0
#include "cli/codecs.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "cli/json_envelope.h"
#include "cli/options.h"
#include "cli/rows.h"
#include "cli/table.h"

namespace tersekv::cli {
namespace {

constexpr std::array kDims = {64, 128, 256};
constexpr int kMeasuredDim = 128;
constexpr size_t kMeasuredRows = 1024;
constexpr Kv kSides[] = {Kv::kK, Kv::kV};

struct Row {
  CodecInfo info;
  std::array<double, kDims.size()> bytes = {};  // of a token in one KV head, K and V together
  std::optional<double> expected[2], measured[2];
};

Result<Row> Describe(const CodecInfo& info, const std::vector<float>* rows) {
  Row row;
  row.info = info;
  const auto spec = ParseSpec(info.spec);
  if (!spec) return spec.error();
  for (const Kv side : kSides) {
    const size_t s = side == Kv::kK ? 0 : 1;
    row.expected[s] = ExpectedDistortion(*spec, side, kMeasuredDim);
    for (size_t i = 0; i < kDims.size(); ++i) {
      auto codec = VectorCodec::Create(*spec, side, kDims[i]);
      if (!codec) return codec.error();
      row.bytes[i] += static_cast<double>((*codec)->record_bytes()) / static_cast<double>((*codec)->record_rows());
      if (rows == nullptr || kDims[i] != kMeasuredDim) continue;
      auto measured = MeasureDistortion(**codec, rows->data(), kMeasuredRows);
      if (!measured) return measured.error();
      row.measured[s] = *measured;
    }
  }
  return row;
}

std::string Number(const std::optional<double>& d) { return d ? fmt::format("{:.3g}", *d) : "-"; }
Json OrNull(const std::optional<double>& d) { return d ? Json(*d) : Json(); }
const char* CpuPath(const CodecInfo& info) { return info.integer_kernels ? "integer" : "fp32"; }

Json ToJson(const Row& row) {
  Json json;
  json["spec"] = row.info.spec;
  json["bits"] = row.info.bits;
  for (size_t i = 0; i < kDims.size(); ++i) json[fmt::format("bytes_d{}", kDims[i])] = row.bytes[i];
  json["distortion_head_dim"] = kMeasuredDim;
  json["d_theory_k"] = OrNull(row.expected[0]);
  json["d_theory_v"] = OrNull(row.expected[1]);
  json["d_measured_k"] = OrNull(row.measured[0]);
  json["d_measured_v"] = OrNull(row.measured[1]);
  json["cost"] = CostLetter(row.info.cost);
  json["cpu"] = CpuPath(row.info);
  json["description"] = row.info.description;
  return json;
}

std::string ToText(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"spec", "bits", "B d=64", "B d=128", "B d=256", "D of K", "theory", "D of V", "theory", "cost", "CPU"}};
  for (const Row& row : rows) {
    std::vector<std::string> line = {row.info.spec, fmt::format("{:g}", row.info.bits)};
    for (const double bytes : row.bytes) line.push_back(fmt::format("{:g}", bytes));
    for (const size_t s : {0, 1}) {
      line.push_back(Number(row.measured[s]));
      line.push_back(Number(row.expected[s]));
    }
    line.emplace_back(CostLetter(row.info.cost));
    line.emplace_back(CpuPath(row.info));
    cells.push_back(std::move(line));
  }
  return FormatTable(cells, {0, 10}) +
         fmt::format(
             "\nB: bytes a token in one KV head, K and V. D: error / power, d = {}. K and V may differ (k4v3), options "
             "follow\nwith '+' (k4v4+sink=8+win=256). llama.cpp's own cache, to compare: {}.\n",
             kMeasuredDim, fmt::join(StockCaches(), ", "));
}

}  // namespace

const char* CostLetter(CodecCost cost) {
  switch (cost) {
    case CodecCost::kNone:
      return "-";
    case CodecCost::kInteger:
      return "A";
    case CodecCost::kTable:
      return "B";
    case CodecCost::kSearch:
      return "C";
  }
  return "?";
}

CLI::App* AddCodecs(CLI::App* app, CodecsOptions* options) {
  CLI::App* sub = app->add_subcommand("codecs", "List every spec that --kv takes: bits, bytes, distortion, cost");
  AddJsonOption(sub, &options->json);
  sub->add_flag("--no-measure", options->no_measure, "Leave out the measured distortion");
  sub->footer(
      "Bytes are those of one token in one KV head, K and V together, for heads of 64, 128 and 256 channels; raw "
      "sinks\n"
      "and window not counted. D is |x - decoded|^2 / |x|^2 over 1024 Gaussian vectors of 128 channels, measured now;\n"
      "theory is what it should be. norm=unbiased (K) makes vectors longer by 1 / (1 - D), so that scores have no "
      "bias.\n"
      "cost   A: codes are multiplied as integers. B: each value is looked up or scaled into fp32 first. C: as B, and\n"
      "       vectors are searched for when written (trellis) or transformed when read (prod). -: raw values.\n"
      "CPU    integer: integer kernels. fp32: tiles of fp32, decoded as attention goes.\n\n"
      "Example:\n  tersekv codecs\n  tersekv codecs --json codecs.json");
  return sub;
}

int Codecs(const CodecsOptions& options) {
  if (Status status = CheckWritable(options.json); !status.ok()) return Fail(status);
  std::vector<float> gaussian;
  if (!options.no_measure) gaussian = GaussianRows(1, kMeasuredRows, kMeasuredDim);
  std::vector<Row> rows;
  for (const CodecInfo& info : ListCodecs()) {
    auto row = Describe(info, options.no_measure ? nullptr : &gaussian);
    if (!row) return Fail(row.error());
    rows.push_back(std::move(*row));
  }
  std::string text = ToText(rows);
  if (!options.json.empty()) {
    Json json = Json::array();
    for (const Row& row : rows) json.push_back(ToJson(row));
    text = Dump(Envelope(std::move(json)));
  }
  const Status status = WriteText(options.json.empty() ? "-" : options.json, text);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
