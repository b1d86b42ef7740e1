// SPDX-License-Identifier: Apache-2.0
// From the handles that a program holds to what we know of them. Thread-safe; what it returns lives until the program
// frees the handle.
#pragma once

#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "hosts/llama/model.h"
#include "hosts/llama/preload/context.h"

namespace tersekv::llama::preload {

// A llama_batch_ext of the program: its fields are hidden, so the calls that fill it are written down.
struct RecordedBatch {
  std::vector<BatchToken> tokens;
  bool failed = false;  // a call could not be written down
};

// How the program loaded a model.
struct LoadedModel {
  std::string path;        // empty: in another way than from one file
  bool measuring = false;  // no_alloc: without weights, to see what would fit
};

class Registry {
 public:
  static Registry& Get();

  void Add(std::unique_ptr<Context> context);
  std::unique_ptr<Context> Take(const llama_context* handle);  // null: not ours
  Context* Find(const llama_context* handle);                  // null: not ours
  Context* FindByMemory(llama_memory_t memory);

  void AddBatch(const llama_batch_ext* batch);
  void RemoveBatch(const llama_batch_ext* batch);
  RecordedBatch* FindBatch(const llama_batch_ext* batch);  // null: of a context that is not ours

  void AddModel(const llama_model* model, LoadedModel how);
  void RemoveModel(const llama_model* model);
  LoadedModel HowLoaded(const llama_model* model);
  // What the host knows of it, found out once.
  Result<std::shared_ptr<const Model>> Describe(llama_model* model);

 private:
  std::shared_mutex mutex_;
  std::map<const llama_context*, std::unique_ptr<Context>> contexts_;
  std::map<llama_memory_t, Context*> memories_;
  std::map<const llama_batch_ext*, RecordedBatch> batches_;
  std::map<const llama_model*, LoadedModel> loaded_;
  std::map<const llama_model*, std::shared_ptr<const Model>> models_;
};

}  // namespace tersekv::llama::preload
