// SPDX-License-Identifier: Apache-2.0
// tersekv_gpu_check [--small]: everything that can be checked on the device at hand; less of it for compute-sanitizer.
#include <cstring>

#include "src/cuda/params.h"
#include "tests/cuda/gpu/checks.h"
#include "tests/cuda/gpu/harness.h"

int main(int argc, char** argv) {
  using namespace tersekv::gpu;
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  cudaDeviceProp device;
  Cuda(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors; kernels: %s\n", device.name, device.multiProcessorCount,
              tersekv::cuda::KernelList());
  CheckRefusals();
  CheckNotFinite();
  CheckAppend(small);
  CheckAttend(small, false);
  CheckAttend(small, true);
  CheckAbi(small);
  CheckRing();
  if (!small) {
    CheckGraph();
    CheckStreams();
    CheckLong();
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
