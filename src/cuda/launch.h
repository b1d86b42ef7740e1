// SPDX-License-Identifier: Apache-2.0
// Launches behind the checks of api.cc: parameters have been validated there.
#pragma once

#include "src/cuda/params.h"

namespace tersekv::cuda {

// The last launch's error as a Status that names the kernel.
Status LaunchStatus(const char* kernel);

Status LaunchAppend(const AppendParams& p, void* stream);
Status LaunchDecompress(const DecompressParams& p, void* stream);

}  // namespace tersekv::cuda
