// SPDX-License-Identifier: Apache-2.0
// What llama.cpp says: kept for our error messages, printed only with TERSEKV_LOG=1.
#pragma once

#include <string>

namespace tersekv::llama {

// Loads the backends and takes over the log, once per process.
void InitEngine();

// The engine's last error lines of this thread's last call, at most a few; "" when it said nothing. Clears them.
std::string TakeEngineErrors();

}  // namespace tersekv::llama
