// SPDX-License-Identifier: Apache-2.0
// The llama.cpp host from outside: refuses a file that is not there, and says so.
#include <tersekv/llama.h>

#include <cstdio>

int main() {
  tersekv::llama::SessionOptions options;
  options.model_path = "there_is_no_such_model.gguf";
  auto session = tersekv::llama::Session::Open(options);
  if (session || session.error().code() != tersekv::StatusCode::kNotFound) return 1;
  std::printf("llama.cpp %s: %s\n", tersekv::llama::LlamaVersion().c_str(), session.error().message().c_str());
  return 0;
}
