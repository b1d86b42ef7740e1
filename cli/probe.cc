// SPDX-License-Identifier: Apache-2.0
#include "cli/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/json_envelope.h"
#include "cli/table.h"

namespace tersekv::cli {
namespace {

double Decibel(double ratio) { return 10 * std::log10(ratio); }

Json ProbeJson(const ProbeReport& report) {
  Json rows = Json::array();
  for (size_t l = 0; l < report.layers.size(); ++l) {
    const ProbeLayer& layer = report.layers[l];
    Json row;
    row["layer"] = l;
    row["kv_norm_ratio"] = layer.kv_norm_ratio;
    row["k_uncentred"] = layer.k_uncentred;
    row["k_mean_gain_db"] = layer.k_mean_gain_db;
    row["k_scale_gain_db"] = layer.k_scale_gain_db;
    row["v_uncentred"] = layer.v_uncentred;
    rows.push_back(std::move(row));
  }
  for (const ProbeSpec& spec : report.specs) {
    Json row;
    row["spec"] = spec.spec;
    row["bits"] = spec.bits;
    row["k_kl_mean"] = spec.k_kl_mean;
    row["k_kl_worst"] = spec.k_kl_worst;
    row["k_kl_mean_off"] = spec.k_kl_mean_off;
    row["v_error_mean"] = spec.v_error_mean;
    row["v_error_worst"] = spec.v_error_worst;
    rows.push_back(std::move(row));
  }
  for (const ProbeAdvice& advice : report.advice) {
    Json row;
    row["mode"] = advice.mode;
    row["recommended"] = advice.spec;
    row["reasons"] = advice.reasons;
    rows.push_back(std::move(row));
  }
  return rows;
}

Status RunProbe(const ProbeOptions& options) {
  const std::string& json = options.text.json;
  for (const std::string& path : {json, options.svg}) {
    if (Status status = CheckWritable(path); !status.ok()) return status;
  }
  Result<Profile> profile = Status();
  if (!options.profile.empty()) {
    profile = LoadProfile(options.profile);
  } else {
    if (options.text.engine.model.empty()) {
      return InvalidArgument("no model: name a GGUF file with -m MODEL.gguf, or a profile with --profile FILE");
    }
    auto host = OpenCalibration(options.text);
    if (!host) return host.error();
    profile = RunStatistics(options.text, host->get());
  }
  if (!profile) return profile.error();
  const auto report = Probe(*profile);
  if (!report) return report.error();
  if (json != "-" && options.svg != "-") {
    const std::string head = fmt::format("{}: {} tokens of statistics\n", profile->model_name, profile->tokens);
    if (Status status = WriteText("-", head + ProbeText(*report)); !status.ok()) return status;
  }
  if (!options.svg.empty()) {
    if (Status status = WriteText(options.svg, ProbeSvg(*report, profile->model_name)); !status.ok()) return status;
  }
  return json.empty() ? Status() : WriteText(json, Dump(Envelope(ProbeJson(*report))));
}

}  // namespace

std::string ProbeText(const ProbeReport& report) {
  std::vector<std::vector<std::string>> layers = {{"layer", "|K|/|V|", "K energy / centred", "mean saves",
                                                   "scale saves", "V energy / centred", "K KL at 4 bits",
                                                   "V error at 4 bits"}};
  const auto at4 =
      std::find_if(report.specs.begin(), report.specs.end(), [](const ProbeSpec& s) { return s.spec == "k4v4"; });
  for (size_t l = 0; l < report.layers.size(); ++l) {
    const ProbeLayer& layer = report.layers[l];
    layers.push_back({fmt::format("{}", l), fmt::format("{:.2f}", layer.kv_norm_ratio),
                      fmt::format("{:.2f} ({:.1f} dB)", layer.k_uncentred, Decibel(layer.k_uncentred)),
                      fmt::format("{:.1f} dB", layer.k_mean_gain_db), fmt::format("{:.1f} dB", layer.k_scale_gain_db),
                      fmt::format("{:.2f}", layer.v_uncentred),
                      at4 != report.specs.end() ? fmt::format("{:.2g}", at4->k_kl[l]) : "",
                      at4 != report.specs.end() ? fmt::format("{:.2g}", at4->v_error[l]) : ""});
  }
  std::vector<std::vector<std::string>> specs = {
      {"spec", "bits", "K KL mean", "worst layer", "mean=off", "V error mean", "worst layer"}};
  for (const ProbeSpec& spec : report.specs) {
    specs.push_back({spec.spec, fmt::format("{}", spec.bits), fmt::format("{:.2g}", spec.k_kl_mean),
                     fmt::format("{:.2g}", spec.k_kl_worst), fmt::format("{:.2g}", spec.k_kl_mean_off),
                     fmt::format("{:.2g}", spec.v_error_mean), fmt::format("{:.2g}", spec.v_error_worst)});
  }
  std::string text = FormatTable(layers) +
                     "\npredicted KL of attention weights, nats, and error of attention output:\n" + FormatTable(specs);
  for (const ProbeAdvice& advice : report.advice) {
    text +=
        fmt::format("\nrecommended, {}: {}\n", advice.mode == "quality" ? "quality first" : advice.mode, advice.spec);
    for (const std::string& reason : advice.reasons) text += fmt::format("  - {}\n", reason);
  }
  return text;
}

CLI::App* AddProbe(CLI::App* app, ProbeOptions* options) {
  CLI::App* sub = app->add_subcommand("probe", "Predict from one pass how few bits a model's cache bears, and say why");
  AddTextOptions(sub, &options->text);
  sub->add_option("--profile", options->profile, "Read the statistics of a profile, run no model")->type_name("FILE");
  sub->add_option("--svg", options->svg, "Draw a picture")->type_name("FILE");
  sub->footer(
      "A prediction from statistics alone (docs/calibration.md): measure with `tersekv eval` before you rely on it.\n\n"
      "Examples:\n"
      "  tersekv probe -m model.gguf --text book.txt --svg probe.svg\n"
      "  tersekv probe --profile model.tkvp");
  return sub;
}

int ProbeCommand(const ProbeOptions& options) {
  const Status status = RunProbe(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
