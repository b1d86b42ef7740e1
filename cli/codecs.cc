// SPDX-License-Identifier: Apache-2.0
#include "cli/codecs.h"

#include <fmt/format.h>

#include "cli/json_envelope.h"
#include "cli/options.h"
#include "cli/table.h"
#include "tersekv/codec.h"

namespace tersekv::cli {
namespace {

// Bytes that a token takes in one KV head, K and V together, scales included; 0 when that is decided at load.
double BytesPerToken(const std::string& name, int head_dim) {
  const auto spec = ParseSpec(name);
  if (!spec || spec->k.family == Family::kAuto) return 0;
  return BitsSpec(*spec, head_dim, head_dim) * 2 * head_dim / 8;
}

std::string Bytes(double bytes) { return bytes > 0 ? fmt::format("{:g}", bytes) : "-"; }

}  // namespace

CLI::App* AddCodecs(CLI::App* app, CodecsOptions* options) {
  CLI::App* sub = app->add_subcommand("codecs", "List every spec that --kv takes, with bits and bytes");
  AddJsonOption(sub, &options->json);
  sub->footer(
      "Bytes are those of one token in one KV head, K and V together, for heads of 64 and 128 channels; f16 takes 256\n"
      "and 512.\n\n"
      "Example:\n  tersekv codecs\n  tersekv codecs --json codecs.json");
  return sub;
}

int Codecs(const CodecsOptions& options) {
  if (Status status = CheckWritable(options.json); !status.ok()) return Fail(status);
  Json json = Json::array();
  std::vector<std::vector<std::string>> rows = {{"spec", "bits", "B d=64", "B d=128", "what"}};
  for (const CodecInfo& codec : ListCodecs()) {
    const double b64 = BytesPerToken(codec.spec, 64), b128 = BytesPerToken(codec.spec, 128);
    rows.push_back({codec.spec, codec.bits > 0 ? fmt::format("{:g}", codec.bits) : "-", Bytes(b64), Bytes(b128),
                    codec.description});
    Json row;
    row["spec"] = codec.spec;
    row["bits"] = codec.bits > 0 ? Json(codec.bits) : Json();
    row["bytes_d64"] = b64 > 0 ? Json(b64) : Json();
    row["bytes_d128"] = b128 > 0 ? Json(b128) : Json();
    row["description"] = codec.description;
    json.push_back(row);
  }
  if (!options.json.empty()) {
    const Status status = WriteText(options.json, Dump(Envelope(json)));
    return status.ok() ? kExitOk : Fail(status);
  }
  std::string text = FormatTable(rows, {0, 4});
  text += fmt::format(
      "\nK and V may differ (k4v3), options follow with '+' (k4v4+sink=8+win=256). llama.cpp's own cache, to compare: "
      "{}.\n",
      fmt::join(StockCaches(), ", "));
  const Status status = WriteText("-", text);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
