// SPDX-License-Identifier: Apache-2.0
// For the files that define functions of llama.h in front of libllama's. What is not ours goes on to the real function
// with the arguments as they came; what is ours runs under Guard or On, because nothing may throw into a C caller.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

#include "hosts/llama/preload/engine.h"
#include "hosts/llama/preload/registry.h"
#include "hosts/llama/preload/say.h"
#include "hosts/llama/preload/status_board.h"

#define TERSEKV_INTERPOSED extern "C" __attribute__((visibility("default")))

namespace tersekv::llama::preload {

inline Context* Ours(const llama_context* context) { return Registry::Get().Find(context); }
// What body returns; after an exception `error`, what the function returns when it fails, and one line. thrown() runs
// then.
template <class Error, class Body, class Thrown>
Error Guard(const char* function, Error error, Body&& body, Thrown&& thrown) noexcept {
  try {
    return body();
  } catch (const std::exception& e) {
    SayFailed(function, e.what());
  } catch (...) {
    SayFailed(function, "an unknown exception");
  }
  thrown();
  return error;
}
template <class Error, class Body>
Error Guard(const char* function, Error error, Body&& body) noexcept {
  return Guard(function, error, std::forward<Body>(body), [] {});
}

// Guard for calls on a context. After an exception in the middle of a change it is not used any more.
template <class Error, class Body>
Error On(const char* function, Context* ours, Error error, Body&& body) noexcept {
  const Busy busy(ours->watch());
  if (ours->broken()) {
    SayFailed(function, "this context failed in the middle of a change, see above, and is not used any more");
    return error;
  }
  const uint64_t before = ours->history().changes();
  return Guard(
      function, error,
      [&] {
        const Error result = body();
        if (busy.outermost()) StatusBoard::Get().Called(ours->watch());
        return result;
      },
      [ours, before] {
        if (ours->history().changes() != before) ours->Break();
      });
}
template <class Body>
void On(const char* function, Context* ours, Body&& body) noexcept {
  On(function, ours, 0, [&body] {
    body();
    return 0;
  });
}

inline Context* Ours(llama_memory_t memory) { return Registry::Get().FindByMemory(memory); }

}  // namespace tersekv::llama::preload
