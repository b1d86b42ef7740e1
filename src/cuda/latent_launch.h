// SPDX-License-Identifier: Apache-2.0
// Launches behind the checks of latent_api.cc.
#pragma once

#include "src/cuda/latent.h"
#include "src/cuda/launch.h"

namespace tersekv::cuda {

// How attention is cut: thread blocks of 64 query rows, each sequence in `splits` equal runs of tiles.
struct LatentShape {
  int row_blocks = 0, splits = 0;
};
inline constexpr int kLatentRows = 64;

// workspace: [batch][row_blocks * 64][splits] of accumulators [512], then of (m, l).
constexpr size_t LatentParts(const LatentShape& s, int batch) {
  return static_cast<size_t>(batch) * static_cast<size_t>(s.row_blocks * kLatentRows * s.splits);
}

// Launches a kernel of one width: launch.operator()<bits>() with bits known to the compiler.
template <class F>
Status ForBits(int bits, const char* kernel, F launch) {
  switch (bits) {
    case 2:
      launch.template operator()<2>();
      break;
    case 3:
      launch.template operator()<3>();
      break;
    case 4:
      launch.template operator()<4>();
      break;
    case 5:
      launch.template operator()<5>();
      break;
    case 6:
      launch.template operator()<6>();
      break;
    default:
      launch.template operator()<8>();
  }
  return LaunchStatus(kernel);
}

Status LaunchLatentAppend(const LatentAppendParams& p, void* stream);
Status LaunchLatentAttend(const LatentAttendParams& p, const LatentShape& shape, void* stream);
// Multiprocessors of the current device.
Status DeviceBlocks(int* blocks);

}  // namespace tersekv::cuda
