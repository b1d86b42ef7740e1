// SPDX-License-Identifier: Apache-2.0
// Whole files: read with a limit, written atomically.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tersekv/status.h"

namespace tersekv {

// what: "profile", for messages. kNotFound, kInvalidArgument (a folder), kDataLoss (larger than limit, unreadable).
Result<std::string> ReadFile(const std::string& path, const std::string& what, size_t limit);

// A temporary file in the same folder, fsync, rename, fsync of the folder: after a crash there is the old file or the
// new one, whole.
Status WriteFileAtomically(const std::string& path, std::string_view bytes, const std::string& what);

}  // namespace tersekv
