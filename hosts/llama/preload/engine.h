// SPDX-License-Identifier: Apache-2.0
// The functions of the libllama and libggml that the program around us has loaded, found by name: the preload object
// links neither. Sources of the host are compiled here with engine_names.h in front, which makes each of their calls go
// through this table; interposed functions (interpose_*.cc) name the table themselves.
#pragma once

#include <string>

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace tersekv::llama {

struct Engine {
#define TERSEKV_ENGINE_FUNCTION(name, optional) decltype(&::name) f_##name = nullptr;
#include "engine_functions.inc"
#undef TERSEKV_ENGINE_FUNCTION
};
extern Engine engine;

// The table, filled by the first call. Thread-safe.
Engine& FillEngine();

// What cannot go on: a function that the program itself called is in no loaded library.
[[noreturn]] void FunctionMissing(const char* name);
template <class F>
F Need(F function, const char* name) {
  if (function == nullptr) FunctionMissing(name);
  return function;
}
#define TERSEKV_REAL(name) (*::tersekv::llama::Need(::tersekv::llama::FillEngine().f_##name, #name))

// A function by another signature, which its bytes fit as well (abi.h).
template <class To, class From>
To Recast(From* function) {
  return reinterpret_cast<To>(reinterpret_cast<void*>(function));
}

// Path of the libllama of this process, whoever loaded it; empty: none.
std::string LoadedLlama();

// Names of functions that are missing, comma-separated; empty when the table is complete.
const char* MissingFunctions();

}  // namespace tersekv::llama
