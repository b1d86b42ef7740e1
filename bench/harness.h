// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: numbers that are the same every run, and the JSON context (commit, machine, target).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersekv::bench {

// n values of a standard normal distribution; the same for the same seed on every machine with the same libm.
std::vector<float> Normal(size_t n, uint64_t seed);

// "Intel(R) Xeon(R) ..., 2 cores"
std::string Machine();

// Says what is wrong and ends the program: a kernel that is wrong is not timed.
[[noreturn]] void Wrong(const std::string& what);

// Runs what is registered; main() of every benchmark.
int RunAll(int argc, char** argv);

}  // namespace tersekv::bench
