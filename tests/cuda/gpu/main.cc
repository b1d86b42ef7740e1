// SPDX-License-Identifier: Apache-2.0
// tersekv_gpu_check [--small] [NAME...]: what can be checked on the device at hand, or the named parts of it; --small:
// less of it, for compute-sanitizer.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "src/cuda/params.h"
#include "tests/cuda/gpu/checks.h"
#include "tests/cuda/gpu/harness.h"

int main(int argc, char** argv) {
  using namespace tersekv::gpu;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was checked is seen also when time runs out
  std::vector<std::string> names(argv + 1, argv + argc);
  const bool small = std::erase(names, "--small") > 0;
  cudaDeviceProp device;
  Cuda(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors; kernels: %s\n", device.name, device.multiProcessorCount,
              tersekv::cuda::KernelList());
  const struct {
    const char* name;
    void (*run)(bool small);
    bool large;  // left out by --small
  } checks[] = {{"refusals", [](bool) { CheckRefusals(); }, false},
                {"not_finite", [](bool) { CheckNotFinite(); }, false},
                {"append", CheckAppend, false},
                {"decompress", CheckDecompress, false},
                {"prefill", CheckPrefill, false},
                {"latents", CheckLatents, false},
                {"attend", [](bool s) { CheckAttend(s, false); }, false},
                {"raw", [](bool s) { CheckAttend(s, true); }, false},
                {"abi", CheckAbi, false},
                {"ring", [](bool) { CheckRing(); }, false},
                {"graph", [](bool) { CheckGraph(); }, true},
                {"streams", [](bool) { CheckStreams(); }, true},
                {"long", [](bool) { CheckLong(); }, true}};
  for (const auto& check : checks) {
    const auto at = std::find(names.begin(), names.end(), check.name);
    const bool wanted = at != names.end() || (names.empty() && !(small && check.large));
    if (wanted) check.run(small);
  }
  for (const std::string& name : names) {
    GPU_EXPECT(std::any_of(std::begin(checks), std::end(checks), [&](const auto& c) { return name == c.name; }),
               "no check is called '%s'", name.c_str());
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
