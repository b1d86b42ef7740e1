// SPDX-License-Identifier: Apache-2.0
// Launches behind the checks of api.cc: parameters have been validated there.
#pragma once

#include "src/cuda/params.h"

namespace tersekv::cuda {

// The last launch's error as a Status that names the kernel.
Status LaunchStatus(const char* kernel);

// Launches a kernel of one head_dim: launch.operator()<d>() with d known to the compiler.
template <class F>
Status ForHeadDim(int d, const char* kernel, F launch) {
  switch (d) {
    case 64:
      launch.template operator()<64>();
      break;
    case 128:
      launch.template operator()<128>();
      break;
    case 192:
      launch.template operator()<192>();
      break;
    default:
      launch.template operator()<256>();
  }
  return LaunchStatus(kernel);
}

Status LaunchAppend(const AppendParams& p, void* stream);
Status LaunchDecompress(const DecompressParams& p, void* stream);
Status LaunchTransformed(const DecompressParams& p, void* stream);
Status LaunchTransform(const TransformParams& p, void* stream);
Status LaunchMerge(const MergeParams& p, void* stream);

}  // namespace tersekv::cuda
