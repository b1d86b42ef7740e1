// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

#include "cli/options.h"
#include "cli/table.h"

namespace tersekv::cli {
namespace {

std::string Kl(const std::optional<double>& kl) { return kl ? fmt::format("{:.6f}", *kl) : "-"; }

// One digit a layer.
std::string Digits(const std::vector<int>& bits) { return fmt::format("{}", fmt::join(bits, "")); }

std::string ShapesOf(const Profile& profile) {
  const LayerShape& shape = profile.layers.front().shape;
  bool same = true;
  for (const ProfileLayer& layer : profile.layers) same = same && layer.shape == shape;
  return fmt::format("{} KV layers{} {} query heads over {} KV heads of {} / {}", profile.layers.size(),
                     same ? " of" : ", the first of", shape.heads, shape.kv_heads, shape.head_dim_k, shape.head_dim_v);
}

std::string ProfileText(const Profile& profile) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<14} {}\n", name, value);
  };
  line("model", profile.model_name);
  line("fingerprint", profile.model_fingerprint);
  line("made by", "tersekv " + profile.tersekv_version);
  line("layers", ShapesOf(profile));
  line("channel order", ChannelOrderName(profile.channel_order));
  line("statistics",
       fmt::format("{} tokens, {} leading position(s) with atypical keys", profile.tokens, profile.sink_tokens));
  line("sensitivities", fmt::format("{} units", profile.sensitivities.size()));
  for (const auto& [key, value] : profile.metadata) line(key.c_str(), value);
  return text;
}

Json ProfileJson(const Profile& profile) {
  Json row;
  row["model"] = profile.model_name;
  row["fingerprint"] = profile.model_fingerprint;
  row["made_by"] = profile.tersekv_version;
  row["layers"] = profile.layers.size();
  row["channel_order"] = ChannelOrderName(profile.channel_order);
  row["tokens"] = profile.tokens;
  row["sink_tokens"] = profile.sink_tokens;
  row["metadata"] = profile.metadata;
  Json units = Json::array();
  for (const UnitSensitivity& unit : profile.sensitivities) {
    Json json;
    json["layer"] = unit.layer;
    json["side"] = unit.side == Kv::kK ? "k" : "v";
    for (const UnitSensitivity::Anchor& anchor : unit.anchors) json["kl"][fmt::format("{}", anchor.bits)] = anchor.kl;
    units.push_back(std::move(json));
  }
  row["sensitivities"] = std::move(units);
  return row;
}

Status InspectSession(const InspectOptions& options) {
  const Result<SavedSession> saved = OpenSession(options.file);
  if (!saved) return saved.error();
  size_t pages = 0, given_back = 0;
  for (const SequenceState::Layer& layer : saved->state.layers) {
    for (const auto& page : layer.pages) ++(page.empty() ? given_back : pages);
  }
  if (options.json != "-") {
    std::string text;
    const auto line = [&](const char* name, const std::string& value) {
      text += fmt::format("{:<14} {}\n", name, value);
    };
    line("session", fmt::format("format version {}, every checksum fits", saved->version));
    line("model", saved->model_name);
    line("fingerprint", saved->model_fingerprint);
    line("made by", "tersekv " + saved->tersekv_version);
    line("spec", saved->spec);
    line("layers", fmt::format("{}", saved->layers.size()));
    const std::vector<int32_t>& places = saved->state.positions;  // below 0: without a token
    const auto first = std::find_if(places.begin(), places.end(), [](int32_t stored) { return stored >= 0; });
    line("tokens", fmt::format("{}, positions {} to {}", saved->tokens.size(), *first, places.back()));
    line("pages", fmt::format("{}, {} given back", pages, given_back));
    line("bytes", fmt::format("{}", saved->bytes));
    if (Status status = WriteText("-", text); !status.ok()) return status;
  }
  if (options.json.empty()) return {};
  Json row;
  row["model"] = saved->model_name;
  row["fingerprint"] = saved->model_fingerprint;
  row["made_by"] = saved->tersekv_version;
  row["format_version"] = saved->version;
  row["spec"] = saved->spec;
  row["layers"] = saved->layers.size();
  row["tokens"] = saved->tokens.size();
  row["pages"] = pages;
  row["pages_given_back"] = given_back;
  row["bytes"] = saved->bytes;
  return WriteText(options.json, Dump(Envelope(Json::array({std::move(row)}))));
}

bool IsSession(const std::string& path) {
  char first[kSessionMagic.size()] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(first, sizeof first) && std::string_view(first, sizeof first) == kSessionMagic;
}

Status RunInspect(const InspectOptions& options) {
  if (Status status = CheckWritable(options.json); !status.ok()) return status;
  if (IsSession(options.file)) return InspectSession(options);
  const auto profile = LoadProfile(options.file);
  if (!profile) return profile.error();
  std::vector<BudgetRow> rows;
  for (const BudgetEntry& entry : profile->byte_budget_table) rows.push_back({entry, std::nullopt});
  if (options.json != "-") {
    const std::string table = rows.empty() ? "no table of bits\n" : BudgetText(*profile, rows);
    if (Status status = WriteText("-", ProfileText(*profile) + table); !status.ok()) return status;
  }
  if (options.json.empty()) return {};
  Json row = ProfileJson(*profile);
  row["byte_budget_table"] = BudgetJson(rows);
  return WriteText(options.json, Dump(Envelope(Json::array({std::move(row)}))));
}

}  // namespace

std::string BudgetText(const Profile& profile, const std::vector<BudgetRow>& rows) {
  bool uniform = false;
  for (const BudgetRow& row : rows) uniform = uniform || row.uniform_kl;
  std::vector<std::vector<std::string>> cells = {
      {"bits", "bytes/token", "KL predicted", "measured", "K bits by layer", "V bits by layer"}};
  if (uniform) cells[0].insert(cells[0].begin() + 4, {"uniform", "saved"});
  for (const auto& [entry, uniform_kl] : rows) {
    cells.push_back({fmt::format("{}", entry.bits), fmt::format("{}", entry.bytes_per_token), Kl(entry.predicted_kl),
                     Kl(entry.measured_kl), Digits(entry.k_bits), Digits(entry.v_bits)});
    if (!uniform) continue;
    const bool known = uniform_kl && entry.measured_kl && *uniform_kl > 0;
    cells.back().insert(
        cells.back().begin() + 4,
        {Kl(uniform_kl), known ? fmt::format("{:.1f}%", 100 * (1 - *entry.measured_kl / *uniform_kl)) : "-"});
  }
  const size_t widths = cells[0].size() - 2;
  return FormatTable(cells, {widths, widths + 1}) +
         fmt::format("{} layers; KL in nats a token, on the calibration text\n", profile.layers.size());
}

Json BudgetJson(const std::vector<BudgetRow>& rows) {
  Json json = Json::array();
  for (const auto& [entry, uniform_kl] : rows) {
    Json row;
    row["bits"] = entry.bits;
    row["bytes_per_token"] = entry.bytes_per_token;
    row["predicted_kl"] = entry.predicted_kl;
    row["measured_kl"] = entry.measured_kl ? Json(*entry.measured_kl) : Json();
    row["uniform_kl"] = uniform_kl ? Json(*uniform_kl) : Json();
    row["k_bits"] = entry.k_bits;
    row["v_bits"] = entry.v_bits;
    json.push_back(std::move(row));
  }
  return json;
}

CLI::App* AddInspect(CLI::App* app, InspectOptions* options) {
  CLI::App* sub = app->add_subcommand("inspect", "Show what is in a profile or a saved session");
  sub->add_option("file", options->file, "Profile or session")->required()->type_name("FILE");
  AddJsonOption(sub, &options->json);
  sub->footer("Examples:\n  tersekv inspect model.tkvp\n  tersekv inspect book.tkvs");
  return sub;
}

int Inspect(const InspectOptions& options) {
  const Status status = RunInspect(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
