// SPDX-License-Identifier: Apache-2.0
// Says at the end of a program whose libllama went around this object.
#include "hosts/llama/preload/reach.h"

#include <atomic>
#include <string>

#include "hosts/llama/preload/engine.h"
#include "hosts/llama/preload/say.h"

namespace tersekv::llama::preload {
namespace {

std::atomic<bool> context_asked = false;
bool linked = false;  // libllama was there when the program began: its symbols are looked for here first

__attribute__((constructor)) void AtStart() { linked = !LoadedLlama().empty(); }

__attribute__((destructor)) void AtEnd() {
  if (linked || context_asked) return;
  try {
    const Result<Settings>& settings = TheSettings();
    if (!settings || !settings->active()) return;
    if (const std::string path = LoadedLlama(); !path.empty()) {
      Say(0,
          "{} was loaded by the program itself and no context was asked for through this object: if one was made, it "
          "was not packed. RTLD_DEEPBIND and dlsym (ctypes) go around LD_PRELOAD: see docs/serving.md, \"ctypes\"",
          path);
    }
  } catch (...) {
    // Nothing more can be said.
  }
}

}  // namespace

void ContextAsked() { context_asked = true; }

}  // namespace tersekv::llama::preload
