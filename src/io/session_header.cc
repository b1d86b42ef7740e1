// SPDX-License-Identifier: Apache-2.0
#include "src/io/session_header.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "src/io/safetensors.h"

namespace tersekv {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 40;  // of any number
constexpr size_t kMostLayers = 4096;

// Numbers of an array, all from 0 to kMost.
std::optional<std::vector<int64_t>> Numbers(const Json& json, size_t count) {
  if (!json.is_array() || json.size() != count) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& n : json) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > static_cast<uint64_t>(kMost)) return std::nullopt;
    numbers.push_back(n.get<int64_t>());
  }
  return numbers;
}

int64_t AllPages(const std::vector<SessionHeader::Layer>& layers) {
  int64_t pages = 0;
  for (const SessionHeader::Layer& layer : layers) pages += static_cast<int64_t>(layer.pages);
  return pages;
}

bool FitsInt(const std::vector<int64_t>& numbers) {
  for (const int64_t n : numbers) {
    if (n > INT32_MAX) return false;
  }
  return true;
}

}  // namespace

Result<std::string> FormatSessionHeader(const SessionHeader& header) {
  for (const std::string* text : {&header.model_name, &header.model_fingerprint}) {
    if (!IsUtf8(*text)) return InvalidArgument("session: the model's name or fingerprint is not UTF-8");
  }
  if (header.layers.size() > kMostLayers || AllPages(header.sections) > kMostSessionPages) {
    return Unsupported(
        fmt::format("session: {} pages of {} layers; a file holds {} of {} layers: save a shorter "
                    "sequence",
                    AllPages(header.sections), header.layers.size(), kMostSessionPages, kMostLayers));
  }
  Json json;
  json["format"] = "tersekv-session";
  json["tersekv_version"] = header.tersekv_version;
  json["model_name"] = header.model_name;
  json["model_fingerprint"] = header.model_fingerprint;
  json["spec"] = header.spec;
  json["page_layout"] = "cpu-1";
  json["sequence"] = {header.places, header.tokens, header.packed_end, header.raw_begin, header.ring_capacity};
  json["first_layer"] = header.first_layer;
  json["layer_bits"] = Json::array();
  for (const LayerBits& b : header.layer_bits) json["layer_bits"].push_back({b.k, b.v});
  json["windows"] = header.windows;
  json["layers"] = Json::array();
  for (size_t l = 0; l < header.layers.size(); ++l) {
    const LayerShape& s = header.layers[l];
    const SessionHeader::Layer& x = header.sections[l];
    Json layer;
    layer["shape"] = {s.heads, s.kv_heads, s.head_dim_k, s.head_dim_v};
    if (s.latent) layer["latent"] = true;
    layer["statistics"] = x.statistics;
    layer["raw_bytes"] = {x.sink_bytes[0], x.sink_bytes[1], x.ring_bytes[0], x.ring_bytes[1]};
    layer["pages"] = {x.pages, x.gone, x.page_bytes};
    json["layers"].push_back(std::move(layer));
  }
  return json.dump();
}

Result<SessionHeader> ParseSessionHeader(std::string_view text, const std::string& name) {
  const auto wrong = [&name](const std::string& field) {
    return DataLoss(fmt::format("session '{}': field '{}' of its header is missing or cannot be", name, field));
  };
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return DataLoss(fmt::format("session '{}': its header is no JSON object", name));
  SessionHeader header;
  const auto at = [](const Json& object, const char* field) {
    const auto it = object.is_object() ? object.find(field) : object.end();
    return it == object.end() ? Json() : *it;
  };
  if (at(json, "format") != "tersekv-session") return wrong("format");
  if (at(json, "page_layout") != "cpu-1") return wrong("page_layout");
  const std::pair<const char*, std::string*> texts[] = {{"tersekv_version", &header.tersekv_version},
                                                        {"model_name", &header.model_name},
                                                        {"model_fingerprint", &header.model_fingerprint},
                                                        {"spec", &header.spec}};
  for (const auto& [field, to] : texts) {
    const Json value = at(json, field);
    if (!value.is_string()) return wrong(field);
    *to = value.get<std::string>();
  }
  const auto sequence = Numbers(at(json, "sequence"), 5);
  if (!sequence) return wrong("sequence");
  header.places = (*sequence)[0];
  header.tokens = (*sequence)[1];
  header.packed_end = (*sequence)[2];
  header.raw_begin = (*sequence)[3];
  header.ring_capacity = (*sequence)[4];
  const Json first = at(json, "first_layer");
  if (!first.is_number_unsigned() || first.get<uint64_t>() > INT32_MAX) return wrong("first_layer");
  header.first_layer = first.get<int32_t>();
  const Json layers = at(json, "layers"), bits = at(json, "layer_bits"), windows = at(json, "windows");
  if (!layers.is_array() || layers.size() > kMostLayers) return wrong("layers");
  if (!bits.is_array() || bits.size() > kMostLayers) return wrong("layer_bits");
  for (const Json& b : bits) {
    const auto pair = Numbers(b, 2);
    if (!pair || !FitsInt(*pair)) return wrong("layer_bits");
    header.layer_bits.push_back({static_cast<int>((*pair)[0]), static_cast<int>((*pair)[1])});
  }
  const auto of_window = windows.is_array() && windows.size() <= kMostLayers ? Numbers(windows, windows.size())
                                                                             : std::optional<std::vector<int64_t>>();
  if (!of_window || !FitsInt(*of_window)) return wrong("windows");
  for (const int64_t w : *of_window) header.windows.push_back(static_cast<int32_t>(w));
  int64_t all_pages = 0;
  for (const Json& layer : layers) {
    const auto shape = Numbers(at(layer, "shape"), 4), statistics = Numbers(at(layer, "statistics"), 6);
    const auto raw = Numbers(at(layer, "raw_bytes"), 4), pages = Numbers(at(layer, "pages"), 3);
    const Json latent = at(layer, "latent");
    if (!latent.is_null() && latent != true) return wrong("layers");
    if (!shape || !FitsInt(*shape) || !statistics || !raw || !pages || (*pages)[1] > (*pages)[0]) {
      return wrong("layers");
    }
    if ((*pages)[0] > header.places / 64 + 1) return wrong("layers");  // a page has 64 tokens or more
    all_pages += (*pages)[0];
    if (all_pages > kMostSessionPages) return wrong("layers");
    const auto n = [](int64_t number) { return static_cast<int>(number); };
    header.layers.push_back({n((*shape)[0]), n((*shape)[1]), n((*shape)[2]), n((*shape)[3]), latent == true});
    SessionHeader::Layer& x = header.sections.emplace_back();
    for (size_t i = 0; i < 6; ++i) x.statistics[i] = static_cast<size_t>((*statistics)[i]);
    for (size_t i = 0; i < 2; ++i) {
      x.sink_bytes[i] = static_cast<size_t>((*raw)[i]);
      x.ring_bytes[i] = static_cast<size_t>((*raw)[2 + i]);
    }
    x.pages = static_cast<size_t>((*pages)[0]);
    x.gone = static_cast<size_t>((*pages)[1]);
    x.page_bytes = static_cast<size_t>((*pages)[2]);
  }
  return header;
}

}  // namespace tersekv
