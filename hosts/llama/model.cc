// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/model.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "hosts/llama/logging.h"
#include "hosts/llama/probe.h"
#include "hosts/llama/weights.h"
#include "src/base/check.h"

namespace tersekv::llama {
namespace {

Status CheckFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return NotFound(fmt::format("there is no model file {}", path));
  if (!std::filesystem::is_regular_file(path, error)) return NotFound(fmt::format("{} is not a file", path));
  std::ifstream in(path, std::ios::binary);
  char magic[4] = {};
  if (!in) return NotFound(fmt::format("{} cannot be read: check its permissions", path));
  in.read(magic, 4);
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    return DataLoss(fmt::format("{} is not a GGUF file (its first bytes are not \"GGUF\")", path));
  }
  return {};
}

// What is known before a graph is built.
Status CheckArchitecture(const llama_model* model, const std::string& architecture) {
  const auto refuse = [&](const std::string& reason) {
    return Unsupported(
        fmt::format("{} models cannot run on a packed cache in this version: {}. llama.cpp's own cache "
                    "(--kv stock-f16) works",
                    architecture, reason));
  };
  if (llama_model_has_encoder(model)) return refuse("they have an encoder");
  if (llama_model_is_recurrent(model)) return refuse("they keep a recurrent state, not a KV cache");
  if (llama_model_is_diffusion(model)) return refuse("their attention is not causal");
  for (const char* key : {"head_count", "top_k", "block_size"}) {
    const std::string value = MetaValue(model, fmt::format("{}.attention.indexer.{}", architecture, key));
    if (!value.empty() && value != "0")
      return refuse("an indexer with a cache of its own picks the keys they attend to");
  }
  return {};
}

// Contexts above this take the long factors of a LongRoPE model; 0: it has none.
int64_t LongRopeFrom(const llama_model* model, const std::string& path, const std::string& architecture) {
  if (path.empty() || !HasTensor(path, "rope_factors_long.weight")) return 0;
  const std::string trained = MetaValue(model, architecture + ".rope.scaling.original_context_length");
  return trained.empty() ? llama_model_n_ctx_train(model) : std::stoll(trained);
}

Result<std::shared_ptr<const Model>> Load(const std::string& path) {
  if (Status s = CheckFile(path); !s.ok()) return s;
  InitEngine();
  TakeEngineErrors();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  ggml_backend_dev_t no_devices[] = {nullptr};  // the CPU alone, whatever this libllama was built with
  params.devices = no_devices;
  auto model = std::make_shared<Model>();
  model->model = llama_model_load_from_file(path.c_str(), params);
  if (model->model == nullptr) {
    return DataLoss(fmt::format("llama.cpp cannot load {}: {}", path, TakeEngineErrors()));
  }
  TERSEKV_RETURN_IF_ERROR(DescribeModel(path, model.get()));
  return std::shared_ptr<const Model>(model);
}

}  // namespace

Status DescribeModel(const std::string& path, Model* model) {
  ModelInfo& info = model->info;
  if (!path.empty()) {
    Result<std::string> fingerprint = FingerprintFile(path);
    if (!fingerprint) return fingerprint.error();
    info.fingerprint = *fingerprint;
  }
  info.name = MetaValue(model->model, "general.name");
  if (info.name.empty()) info.name = std::filesystem::path(path).filename().string();
  const llama_rope_type rope = llama_model_rope_type(model->model);
  info.channel_order = rope == LLAMA_ROPE_TYPE_NORM ? ChannelOrder::kInterleaved : ChannelOrder::kHalf;
  char text[256];
  llama_model_desc(model->model, text, sizeof text);
  info.description = text;
  info.architecture = MetaValue(model->model, "general.architecture");
  info.ctx_train = llama_model_n_ctx_train(model->model);
  info.weight_bytes = llama_model_size(model->model);
  info.vocab = llama_vocab_n_tokens(model->vocab());
  info.heads = llama_model_n_head(model->model);
  if (const char* chat = llama_model_chat_template(model->model, nullptr)) info.chat_template = chat;
  model->packable = CheckArchitecture(model->model, info.architecture);
  model->long_rope_from = LongRopeFrom(model->model, path, info.architecture);
  if (model->packable.ok()) model->packable = ProbeLayers(model->model, &info.layers, &model->layers);
  if (!model->packable.ok()) info.layers.clear();  // never a part of them: sizes would be wrong
  if (model->packable.ok()) {
    info.windows = model->layers.windows;
    info.latent = model->layers.latent;
  }
  info.recurrent = llama_model_is_hybrid(model->model);
  return {};
}

std::string MetaValue(const llama_model* model, const std::string& key) {
  char text[256];
  return llama_model_meta_val_str(model, key.c_str(), text, sizeof text) >= 0 ? text : "";
}

Result<std::shared_ptr<const Model>> LoadModel(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const Model>> loaded;
  const std::lock_guard lock(mutex);
  if (std::shared_ptr<const Model> model = loaded[path].lock()) return model;
  Result<std::shared_ptr<const Model>> model = Load(path);
  if (model) loaded[path] = *model;
  return model;
}

}  // namespace tersekv::llama
