// SPDX-License-Identifier: Apache-2.0
// `tersekv bench e2e`: whole tokens of a model at a depth, ours and llama.cpp's own caches, alternating in one run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/bench_lists.h"
#include "cli/options.h"

namespace tersekv::cli {

struct BenchE2eOptions {
  EngineOptions engine;
  int sequences = 1, tokens = 4, prefill = 0;
  BenchOptions bench = {.depths = "0,4096"};
};

CLI::App* AddBenchE2e(CLI::App* app, BenchE2eOptions* options);
int BenchE2e(const BenchE2eOptions& options);

}  // namespace tersekv::cli
