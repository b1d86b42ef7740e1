// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/registry.h"

#include <mutex>
#include <utility>

#include "src/base/check.h"

namespace tersekv::llama::preload {
namespace {

template <class Map>
auto* FindIn(Map& map, const typename Map::key_type& key) {
  const auto it = map.find(key);
  return it == map.end() ? nullptr : &it->second;
}

}  // namespace

// Never destroyed: a program may free its contexts while it ends.
Registry& Registry::Get() {
  static Registry& registry = *new Registry;
  return registry;
}

void Registry::Add(std::unique_ptr<Context> context) {
  const std::unique_lock lock(mutex_);
  memories_[context->memory()] = context.get();
  const llama_context* handle = context->handle();
  contexts_[handle] = std::move(context);
}

std::unique_ptr<Context> Registry::Take(const llama_context* handle) {
  const std::unique_lock lock(mutex_);
  auto* found = FindIn(contexts_, handle);
  if (found == nullptr) return nullptr;
  std::unique_ptr<Context> context = std::move(*found);
  memories_.erase(context->memory());
  contexts_.erase(handle);
  return context;
}

Context* Registry::Find(const llama_context* handle) {
  const std::shared_lock lock(mutex_);
  auto* found = FindIn(contexts_, handle);
  return found != nullptr ? found->get() : nullptr;
}

Context* Registry::FindByMemory(llama_memory_t memory) {
  const std::shared_lock lock(mutex_);
  auto* found = FindIn(memories_, memory);
  return found != nullptr ? *found : nullptr;
}

void Registry::AddBatch(const llama_batch_ext* batch) {
  const std::unique_lock lock(mutex_);
  batches_[batch] = {};
}

void Registry::RemoveBatch(const llama_batch_ext* batch) {
  const std::unique_lock lock(mutex_);
  batches_.erase(batch);
}

RecordedBatch* Registry::FindBatch(const llama_batch_ext* batch) {
  const std::shared_lock lock(mutex_);
  return FindIn(batches_, batch);
}

void Registry::AddModel(const llama_model* model, LoadedModel how) {
  const std::unique_lock lock(mutex_);
  loaded_[model] = std::move(how);
}

void Registry::RemoveModel(const llama_model* model) {
  const std::unique_lock lock(mutex_);
  loaded_.erase(model);
  models_.erase(model);
}

LoadedModel Registry::HowLoaded(const llama_model* model) {
  const std::shared_lock lock(mutex_);
  const auto* found = FindIn(loaded_, model);
  return found != nullptr ? *found : LoadedModel();
}

Result<std::shared_ptr<const Model>> Registry::Describe(llama_model* model) {
  {
    const std::shared_lock lock(mutex_);
    if (const auto* found = FindIn(models_, model)) return *found;
  }
  auto described = std::make_shared<Model>();
  described->model = model;
  described->borrowed = true;
  TERSEKV_RETURN_IF_ERROR(DescribeModel(HowLoaded(model).path, described.get()));
  const std::unique_lock lock(mutex_);
  return models_[model] = described;
}

}  // namespace tersekv::llama::preload
