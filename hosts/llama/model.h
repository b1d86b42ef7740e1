// SPDX-License-Identifier: Apache-2.0
// A loaded GGUF and what we must know of it. Sessions on the same file share one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hosts/llama/layers.h"
#include "llama.h"
#include "tersekv/llama.h"

namespace tersekv::llama {

struct Model {
  llama_model* model = nullptr;
  ModelInfo info;
  HostLayers layers;
  int64_t long_rope_from = 0;  // LongRoPE: contexts above this take the long factors; 0 = one set of factors
  Status packable;             // why our cache cannot serve it, or ok
  bool borrowed = false;       // `model` is freed by someone else

  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() {
    if (!borrowed) llama_model_free(model);
  }
  const llama_vocab* vocab() const { return llama_model_get_vocab(model); }
};

// Fills everything from `model->model`, which was loaded from `path`; without a path there is no fingerprint, and
// LongRoPE is not noticed.
Status DescribeModel(const std::string& path, Model* model);

// Thread-safe.
Result<std::shared_ptr<const Model>> LoadModel(const std::string& path);

// A metadata value as text, "" when absent.
std::string MetaValue(const llama_model* model, const std::string& key);

}  // namespace tersekv::llama
