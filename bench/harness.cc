// SPDX-License-Identifier: Apache-2.0
#include "bench/harness.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <thread>

#include "src/transform/sign_stream.h"
#include "tersekv/codec.h"
#include "tersekv/version.h"

namespace tersekv::bench {

std::vector<float> Normal(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {  // Box-Muller on a counter
    const uint64_t bits = Mix(Mix(seed) ^ i);
    const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
    const double v = static_cast<double>(bits & 0xffffffffu) * 0x1p-32;
    values[i] = static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
  }
  return values;
}

std::string Machine() {
  std::string name = "unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      name = line.substr(line.find(": ") + 2);
      break;
    }
  }
  return fmt::format("{}, {} cores", name, std::thread::hardware_concurrency());
}

void Wrong(const std::string& what) {
  fmt::print(stderr, "wrong result, nothing is timed: {}\n", what);
  std::exit(1);
}

int RunAll(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("tersekv_version", Version());
  benchmark::AddCustomContext("commit", Commit());
  benchmark::AddCustomContext("machine", Machine());
  benchmark::AddCustomContext("simd", SimdTargets().front());
  const size_t ran = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return ran > 0 ? 0 : 1;
}

}  // namespace tersekv::bench
