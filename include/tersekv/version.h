// SPDX-License-Identifier: Apache-2.0
#pragma once

#define TERSEKV_VERSION_MAJOR 0
#define TERSEKV_VERSION_MINOR 1
#define TERSEKV_VERSION_PATCH 0

namespace tersekv {
const char* Version();  // "0.1.0"
const char* Commit();   // commit of the build, "unknown" outside a git checkout; "-dirty" when files were changed
}  // namespace tersekv
