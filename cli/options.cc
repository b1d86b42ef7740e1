// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv::cli {

void AddEngineOptions(CLI::App* app, EngineOptions* options, bool with_ctx) {
  app->add_option("-m,--model", options->model, "Model file (GGUF)")->type_name("FILE");
  if (with_ctx) {
    app->add_option("--ctx", options->ctx, "Most tokens of the sequence; 0 = what the model was trained for")
        ->envname("TERSEKV_CTX")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 30).description(""))
        ->type_name("N")
        ->capture_default_str();
  }
  app->add_option("--threads", options->threads, "Threads; 0 = all cores")
      ->check(CLI::Range(0, 4096).description(""))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--ubatch", options->ubatch, "Tokens of one forward pass")
      ->check(CLI::Range(1, 65536).description(""))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--mode", options->mode, "How the host works inside the engine: auto, custom or overwrite")
      ->check(CLI::IsMember({"auto", "custom", "overwrite"}).description(""))
      ->type_name("MODE")
      ->capture_default_str();
  AddArithmeticOption(app, &options->arithmetic);
}

void AddArithmeticOption(CLI::App* app, std::string* arithmetic) {
  app->add_option("--arithmetic", *arithmetic,
                  "Of packed tokens: int16 (error within 5e-4), exact (fp32, slower) or fast (8 bits, within 5e-2)")
      ->check(CLI::IsMember({"int16", "exact", "fast"}).description(""))
      ->type_name("KIND")
      ->capture_default_str();
}

Arithmetic ArithmeticOf(const std::string& name) {
  if (name == "fast") return Arithmetic::kFast;
  return name == "exact" ? Arithmetic::kExact : Arithmetic::kInt16;
}

void AddKvBytesOption(CLI::App* app, EngineOptions* options) {
  app->add_option("--kv-bytes", options->kv_bytes, "Byte budget of the KV cache, e.g. 64M (K, M, G); none by default")
      ->envname("TERSEKV_KV_BYTES")
      ->type_name("SIZE");
}

void AddJsonOption(CLI::App* app, std::string* path) {
  app->add_option("--json", *path, "Write JSON to FILE; '-' or no value: to standard output, and nothing else there")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("FILE");
}

Result<llama::SessionOptions> MakeSessionOptions(const EngineOptions& options, const std::string& kv) {
  if (options.model.empty()) return InvalidArgument("no model: name a GGUF file with -m MODEL.gguf");
  llama::SessionOptions session;
  session.model_path = options.model;
  session.kv = kv;
  session.ctx = options.ctx;
  session.ubatch = options.ubatch;
  session.threads = options.threads;
  session.arithmetic = ArithmeticOf(options.arithmetic);
  session.mode = options.mode == "custom"      ? llama::HostMode::kCustom
                 : options.mode == "overwrite" ? llama::HostMode::kOverwrite
                                               : llama::HostMode::kAuto;
  if (!options.kv_bytes.empty()) {
    auto bytes = ParseBytes(options.kv_bytes);
    if (!bytes) return InvalidArgument("--kv-bytes: " + bytes.error().message());
    session.kv_bytes = *bytes;
  }
  return session;
}

const std::vector<std::string>& StockCaches() {
  static const std::vector<std::string> names = {"stock-f32",  "stock-f16",  "stock-bf16",
                                                 "stock-q8_0", "stock-q5_0", "stock-q4_0"};
  return names;
}

bool IsStock(std::string_view kv) { return kv.starts_with("stock-"); }

Result<std::string> CheckKv(const std::string& kv) {
  if (IsStock(kv)) {
    const auto& names = StockCaches();
    if (std::find(names.begin(), names.end(), kv) != names.end()) return kv;
    return InvalidArgument(fmt::format("unknown cache of llama.cpp '{}': known are {}", kv, fmt::join(names, ", ")));
  }
  auto spec = ParseSpec(kv);
  if (!spec) return spec.error();
  if (spec->k.family != Family::kAuto) {
    if (Status status = CheckSupported(*spec); !status.ok()) return status;
  }
  return FormatSpec(*spec);
}

Result<std::vector<std::string>> ListElements(const std::string& list) {
  std::vector<std::string> elements;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    elements.push_back(Trim(std::string_view(list).substr(begin, end - begin)));
    if (elements.back().empty()) {
      return InvalidArgument(fmt::format("'{}' is not a list: an element is empty; write e.g. --kv k4v4,k3v3", list));
    }
    begin = end + 1;
  }
  return elements;
}

Result<std::vector<std::string>> CheckKvList(const std::string& list) {
  auto elements = ListElements(list);
  if (!elements) return elements.error();
  std::vector<std::string> names;
  for (const std::string& element : *elements) {
    auto name = CheckKv(element);
    if (!name) return name.error();
    if (std::find(names.begin(), names.end(), *name) == names.end()) names.push_back(*name);
  }
  return names;
}

double BitsOf(const std::string& kv, const llama::ModelInfo& model) {
  if (kv == "stock-f32") return 32;
  if (kv == "stock-f16" || kv == "stock-bf16") return 16;
  if (kv == "stock-q8_0") return 8.5;
  if (kv == "stock-q5_0") return 5.5;
  if (kv == "stock-q4_0") return 4.5;
  const auto spec = ParseSpec(kv);
  double bits = 0, values = 0;
  if (spec) {
    for (const LayerShape& layer : model.layers) {
      const double n = double(layer.kv_heads) * (layer.head_dim_k + layer.head_dim_v);
      bits += n * BitsSpec(*spec, layer.head_dim_k, layer.head_dim_v);
      values += n;
    }
  }
  return values > 0 ? bits / values : std::numeric_limits<double>::quiet_NaN();
}

bool Blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

std::string Trim(std::string_view text) {
  if (Blank(text)) return "";
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

int Fail(const Status& status) {
  fmt::print(stderr, "error: {}\n", status.message());
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

}  // namespace tersekv::cli
