// SPDX-License-Identifier: Apache-2.0
#include "src/io/profile_fields.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "src/base/check.h"

namespace tersekv {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "tersekv-profile";
constexpr int64_t kMostCount = int64_t{1} << 40;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string TensorName(size_t layer, const char* field) { return fmt::format("layers.{}.{}", layer, field); }

// Calls f(field, rows, values) for each tensor of a layer in the order of the file; rows = 0: one dimension of any
// size.
template <class Layer, class F>
void ForEachTensor(Layer& layer, F&& f) {
  f("k.mean", layer.shape.kv_heads, layer.shape.head_dim_k, layer.k.mean);
  f("k.scale", layer.shape.kv_heads, layer.shape.head_dim_k, layer.k.scale);
  f("k.variance", layer.shape.kv_heads, layer.shape.head_dim_k, layer.k.variance);
  f("v.mean", layer.shape.kv_heads, layer.shape.head_dim_v, layer.v.mean);
  f("v.scale", layer.shape.kv_heads, layer.shape.head_dim_v, layer.v.scale);
  f("v.variance", layer.shape.kv_heads, layer.shape.head_dim_v, layer.v.variance);
  f("query_square", layer.shape.kv_heads, layer.shape.head_dim_k, layer.query_square);
  f("sink_ratio", 0, 0, layer.sink_ratio);
}

// Reads typed values of a JSON text; the first fault stays.
class FieldReader {
 public:
  explicit FieldReader(const std::string& name) : name_(name) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  void Fault(const std::string& field, const std::string& found, const std::string& expected) {
    if (!ok()) return;
    status_ = DataLoss(
        fmt::format("'{}': field '{}' is {}, expected {}; make the profile again", name_, field, found, expected));
  }

  std::string Text(const SafeTensors& file, const std::string& key) {
    const auto it = file.metadata.find(key);
    if (it != file.metadata.end()) return it->second;
    Fault(key, "missing", "a text");
    return {};
  }
  Json Parsed(const SafeTensors& file, const std::string& key, bool array) {
    Json json = Json::parse(Text(file, key), nullptr, false);
    if (array ? json.is_array() : json.is_object()) return json;
    Fault(key, "not that", array ? "a JSON array" : "a JSON object");
    return array ? Json::array() : Json::object();
  }
  // nullptr when it is missing.
  const Json* Find(const Json& object, const std::string& path, const char* key) {
    if (object.is_object()) {
      if (const auto it = object.find(key); it != object.end()) return &*it;
    }
    Fault(path + "." + key, "missing", "there");
    return nullptr;
  }
  int64_t Integer(const Json& json, const std::string& path) {
    if (json.is_number_integer()) {
      const bool large = json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(kMostCount);
      const int64_t value = large ? kMostCount + 1 : json.get<int64_t>();
      if (value >= -kMostCount && value <= kMostCount) return value;
    }
    Fault(path, Dump(json), fmt::format("a whole number up to {}", kMostCount));
    return 0;
  }
  int Int(const Json& json, const std::string& path) {
    const int64_t value = Integer(json, path);
    if (value >= INT32_MIN && value <= INT32_MAX) return static_cast<int>(value);
    Fault(path, Dump(json), "a 32-bit whole number");
    return 0;
  }
  double Number(const Json& json, const std::string& path) {
    if (json.is_number()) return json.get<double>();
    Fault(path, json.type_name(), "a number");
    return 0;
  }
  int IntAt(const Json& object, const std::string& path, const char* key) {
    const Json* json = Find(object, path, key);
    return json != nullptr ? Int(*json, path + "." + key) : 0;
  }
  double NumberAt(const Json& object, const std::string& path, const char* key) {
    const Json* json = Find(object, path, key);
    return json != nullptr ? Number(*json, path + "." + key) : 0;
  }
  std::vector<int> IntsAt(const Json& object, const std::string& path, const char* key) {
    std::vector<int> values;
    const Json* json = Find(object, path, key);
    if (json == nullptr) return values;
    if (!json->is_array()) Fault(path + "." + key, json->type_name(), "an array");
    for (const Json& v : *json) values.push_back(Int(v, path + "." + key));
    return values;
  }
  int64_t IntegerText(const SafeTensors& file, const std::string& key) {
    return Integer(Json::parse(Text(file, key), nullptr, false), key);
  }

 private:
  const std::string& name_;
  Status status_;
};

void ReadLayers(const SafeTensors& file, FieldReader* reader, Profile* profile) {
  const Json layers = reader->Parsed(file, "layers", true);
  for (size_t l = 0; l < layers.size() && reader->ok(); ++l) {
    const std::string path = fmt::format("layers[{}]", l);
    ProfileLayer& layer = profile->layers.emplace_back();
    layer.shape.heads = reader->IntAt(layers[l], path, "heads");
    layer.shape.kv_heads = reader->IntAt(layers[l], path, "kv_heads");
    layer.shape.head_dim_k = reader->IntAt(layers[l], path, "head_dim_k");
    layer.shape.head_dim_v = reader->IntAt(layers[l], path, "head_dim_v");
    layer.attention_scale = static_cast<float>(reader->NumberAt(layers[l], path, "attention_scale"));
    layer.attention_spread = static_cast<float>(reader->NumberAt(layers[l], path, "attention_spread"));
    layer.attention_peak = static_cast<float>(reader->NumberAt(layers[l], path, "attention_peak"));
  }
}

void ReadSensitivities(const SafeTensors& file, FieldReader* reader, Profile* profile) {
  const Json units = reader->Parsed(file, "sensitivities", true);
  for (size_t u = 0; u < units.size() && reader->ok(); ++u) {
    const std::string path = fmt::format("sensitivities[{}]", u);
    UnitSensitivity& unit = profile->sensitivities.emplace_back();
    unit.layer = reader->IntAt(units[u], path, "layer");
    const Json* side = reader->Find(units[u], path, "side");
    if (side != nullptr && *side != "k" && *side != "v") reader->Fault(path + ".side", Dump(*side), "\"k\" or \"v\"");
    unit.side = side != nullptr && *side == "v" ? Kv::kV : Kv::kK;
    const Json* anchors = reader->Find(units[u], path, "anchors");
    if (anchors == nullptr) return;
    if (!anchors->is_array()) reader->Fault(path + ".anchors", anchors->type_name(), "an array");
    for (const Json& anchor : *anchors) {
      unit.anchors.push_back(
          {reader->IntAt(anchor, path + ".anchors", "bits"), reader->NumberAt(anchor, path + ".anchors", "kl")});
    }
  }
}

void ReadBudgets(const SafeTensors& file, FieldReader* reader, Profile* profile) {
  const Json table = reader->Parsed(file, "byte_budget_table", true);
  for (size_t i = 0; i < table.size() && reader->ok(); ++i) {
    const std::string path = fmt::format("byte_budget_table[{}]", i);
    BudgetEntry& entry = profile->byte_budget_table.emplace_back();
    entry.bits = reader->NumberAt(table[i], path, "bits");
    entry.k_bits = reader->IntsAt(table[i], path, "k_bits");
    entry.v_bits = reader->IntsAt(table[i], path, "v_bits");
    if (const Json* bytes = reader->Find(table[i], path, "bytes_per_token")) {
      entry.bytes_per_token = reader->Integer(*bytes, path + ".bytes_per_token");
    }
    entry.predicted_kl = reader->NumberAt(table[i], path, "predicted_kl");
    const Json* measured = reader->Find(table[i], path, "measured_kl");
    if (measured != nullptr && !measured->is_null()) {
      entry.measured_kl = reader->Number(*measured, path + ".measured_kl");
    }
  }
}

void ReadTensors(const SafeTensors& file, FieldReader* reader, Profile* profile) {
  size_t next = 0;
  for (size_t l = 0; l < profile->layers.size() && reader->ok(); ++l) {
    ForEachTensor(profile->layers[l], [&](const char* field, int rows, int columns, std::vector<float>& values) {
      const std::string name = TensorName(l, field);
      if (next >= file.tensors.size() || file.tensors[next].name != name) {
        reader->Fault(name, next < file.tensors.size() ? "'" + file.tensors[next].name + "'" : "missing",
                      "this tensor");
        return;
      }
      const NamedTensor& tensor = file.tensors[next++];
      const bool fits = rows == 0 ? tensor.shape.size() == 1 : tensor.shape == std::vector<int64_t>{rows, columns};
      if (!fits) {
        reader->Fault(name + ".shape", fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                      rows == 0 ? "one dimension" : fmt::format("[{}, {}]", rows, columns));
      }
      values = tensor.values;
    });
  }
  if (reader->ok() && next != file.tensors.size()) reader->Fault(file.tensors[next].name, "there", "no more tensors");
}

}  // namespace

SafeTensors FieldsOfProfile(const Profile& profile) {
  SafeTensors file;
  Json layers = Json::array(), units = Json::array(), table = Json::array();
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const ProfileLayer& layer = profile.layers[l];
    layers.push_back({{"heads", layer.shape.heads},
                      {"kv_heads", layer.shape.kv_heads},
                      {"head_dim_k", layer.shape.head_dim_k},
                      {"head_dim_v", layer.shape.head_dim_v},
                      {"attention_scale", layer.attention_scale},
                      {"attention_spread", layer.attention_spread},
                      {"attention_peak", layer.attention_peak}});
    ForEachTensor(layer, [&](const char* field, int rows, int columns, const std::vector<float>& values) {
      std::vector<int64_t> shape = {rows, columns};
      if (rows == 0) shape = {static_cast<int64_t>(values.size())};
      file.tensors.push_back({TensorName(l, field), std::move(shape), values});
    });
  }
  for (const UnitSensitivity& unit : profile.sensitivities) {
    Json anchors = Json::array();
    for (const auto& anchor : unit.anchors) anchors.push_back({{"bits", anchor.bits}, {"kl", anchor.kl}});
    units.push_back(
        {{"layer", unit.layer}, {"side", unit.side == Kv::kK ? "k" : "v"}, {"anchors", std::move(anchors)}});
  }
  for (const BudgetEntry& entry : profile.byte_budget_table) {
    Json row = {{"bits", entry.bits},
                {"k_bits", entry.k_bits},
                {"v_bits", entry.v_bits},
                {"bytes_per_token", entry.bytes_per_token},
                {"predicted_kl", entry.predicted_kl}};
    row["measured_kl"] = entry.measured_kl ? Json(*entry.measured_kl) : Json();
    table.push_back(std::move(row));
  }
  file.metadata = {{"format", kFormat},
                   {"format_version", std::to_string(kProfileVersion)},
                   {"tersekv_version", profile.tersekv_version},
                   {"model_name", profile.model_name},
                   {"model_fingerprint", profile.model_fingerprint},
                   {"channel_order", ChannelOrderName(profile.channel_order)},
                   {"tokens", std::to_string(profile.tokens)},
                   {"sink_tokens", std::to_string(profile.sink_tokens)},
                   {"layers", Dump(layers)},
                   {"sensitivities", Dump(units)},
                   {"byte_budget_table", Dump(table)},
                   {"metadata", Dump(Json(profile.metadata))}};
  return file;
}

Result<Profile> ProfileOfFields(const SafeTensors& file, const std::string& name) {
  FieldReader reader(name);
  const std::string format = reader.Text(file, "format");
  if (format != kFormat) reader.Fault("format", "'" + format + "'", fmt::format("'{}'", kFormat));
  const int64_t version = reader.IntegerText(file, "format_version");
  TERSEKV_RETURN_IF_ERROR(reader.status());
  if (version != kProfileVersion) {
    return Unsupported(
        fmt::format("'{}': field 'format_version' is {}, this build reads {}; calibrate again or use the "
                    "TerseKV that wrote it ({})",
                    name, version, kProfileVersion, reader.Text(file, "tersekv_version")));
  }
  Profile profile;
  profile.tersekv_version = reader.Text(file, "tersekv_version");
  profile.model_name = reader.Text(file, "model_name");
  profile.model_fingerprint = reader.Text(file, "model_fingerprint");
  const std::string order = reader.Text(file, "channel_order");
  profile.channel_order = order == "half" ? ChannelOrder::kHalf : ChannelOrder::kInterleaved;
  if (order != ChannelOrderName(profile.channel_order)) {
    reader.Fault("channel_order", "'" + order + "'", "'interleaved' or 'half'");
  }
  profile.tokens = reader.IntegerText(file, "tokens");
  profile.sink_tokens = static_cast<int>(std::min<int64_t>(reader.IntegerText(file, "sink_tokens"), INT32_MAX));
  ReadLayers(file, &reader, &profile);
  ReadSensitivities(file, &reader, &profile);
  ReadBudgets(file, &reader, &profile);
  ReadTensors(file, &reader, &profile);
  const Json metadata = reader.Parsed(file, "metadata", false);
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) reader.Fault("metadata." + key, value.type_name(), "a text");
    if (reader.ok()) profile.metadata[key] = value.get<std::string>();
  }
  TERSEKV_RETURN_IF_ERROR(reader.status());
  return profile;
}

}  // namespace tersekv
