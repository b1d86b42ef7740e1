// SPDX-License-Identifier: Apache-2.0
// `tersekv bench attend`: the attention part alone, ours and llama.cpp's own kernel, alternating in one run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/bench_lists.h"
#include "cli/options.h"

namespace tersekv::cli {

struct BenchAttendOptions {
  int kv_heads = 8, group = 4, head_dim = 64, layers = 16;
  int queries = 1;
  std::string arithmetic = "int16";
  int threads = 0;
  BenchOptions bench = {.depths = "4096,16384", .repeat = 9};
};

CLI::App* AddBenchAttend(CLI::App* app, BenchAttendOptions* options);
int BenchAttend(const BenchAttendOptions& options);

}  // namespace tersekv::cli
