// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/engine.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace tersekv::llama {

Engine engine;

namespace {

std::string missing;

const char* UnknownVersion() { return "of an unknown version"; }

// libllama.so, libllama.so.0, libllama.v1.so; not libllama-common.so, and not this object.
bool IsLlama(const char* path) {
  Dl_info own;
  if (dladdr(reinterpret_cast<void*>(&IsLlama), &own) != 0 && std::strcmp(own.dli_fname, path) == 0) return false;
  const char* slash = std::strrchr(path, '/');
  return std::strncmp(slash != nullptr ? slash + 1 : path, "libllama.", 9) == 0;
}

int TakePath(dl_phdr_info* info, size_t, void* path) {
  if (info->dlpi_name == nullptr || !IsLlama(info->dlpi_name)) return 0;
  *static_cast<std::string*>(path) = info->dlpi_name;
  return 1;
}

// Of a library that a plugin has loaded for itself alone: not in the global scope.
void* LocalLlama() {
  const std::string path = LoadedLlama();
  return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
}

void* Find(const char* name) {
  if (void* found = dlsym(RTLD_NEXT, name)) return found;
  static void* const local = LocalLlama();
  return local != nullptr ? dlsym(local, name) : nullptr;
}

template <class F>
void Set(F* slot, const char* name, bool optional) {
  *slot = reinterpret_cast<F>(Find(name));
  if (*slot != nullptr || optional) return;
  missing += missing.empty() ? "" : ", ";
  missing += name;
}

}  // namespace

std::string LoadedLlama() {
  std::string path;
  dl_iterate_phdr(TakePath, &path);
  return path;
}

Engine& FillEngine() {
  static std::once_flag once;
  std::call_once(once, [] {
#define TERSEKV_ENGINE_FUNCTION(name, optional) Set(&engine.f_##name, #name, optional);
#include "engine_functions.inc"
#undef TERSEKV_ENGINE_FUNCTION
    if (engine.f_llama_version == nullptr) engine.f_llama_version = &UnknownVersion;
  });
  return engine;
}

void FunctionMissing(const char* name) {
  std::fprintf(stderr,
               "tersekv: fatal: %s was called and no loaded libllama has it: is LD_PRELOAD meant for this program?\n",
               name);
  std::abort();
}

const char* MissingFunctions() { return missing.c_str(); }

}  // namespace tersekv::llama
