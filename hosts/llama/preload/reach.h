// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tersekv::llama::preload {

// A context was asked for: calls come through this object. Thread-safe.
void ContextAsked();

}  // namespace tersekv::llama::preload
