// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/logging.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "llama.h"
#include "tersekv/llama.h"

namespace tersekv::llama {
namespace {

std::mutex mutex;
std::string errors;
bool print = false;
constexpr size_t kKeptBytes = 400;

void Log(ggml_log_level level, const char* text, void*) {
  const std::lock_guard lock(mutex);
  if (print) std::fputs(text, stderr);
  if (level == GGML_LOG_LEVEL_ERROR) {
    errors += text;
    if (errors.size() > kKeptBytes) errors.erase(0, errors.size() - kKeptBytes);
  }
}

}  // namespace

void InitEngine() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* log = std::getenv("TERSEKV_LOG");
    print = log != nullptr && *log != '\0' && *log != '0';
    llama_log_set(Log, nullptr);
    llama_backend_init();
    ggml_backend_load_all();
  });
}

std::string TakeEngineErrors() {
  const std::lock_guard lock(mutex);
  std::string taken;
  taken.swap(errors);
  while (!taken.empty() && taken.back() == '\n') taken.pop_back();
  for (char& c : taken) {
    if (c == '\n') c = ';';
  }
  return taken;
}

std::string LlamaVersion() { return llama_version(); }

}  // namespace tersekv::llama
