// SPDX-License-Identifier: Apache-2.0
// `tersekv bench attend`: the attention part alone, ours and llama.cpp's own kernel, alternating in one run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/options.h"

namespace tersekv::cli {

struct BenchAttendOptions {
  int kv_heads = 8, group = 4, head_dim = 64, layers = 16;
  std::string depths = "4096,16384";
  int queries = 1;
  std::string kv = "k4v4";
  std::string peers = "f16,q8_0,q4_0";
  std::string arithmetic = "int16";
  int threads = 0, repeat = 9;
  std::string json;
  bool quiet = false;
};

CLI::App* AddBenchAttend(CLI::App* app, BenchAttendOptions* options);
int BenchAttend(const BenchAttendOptions& options);

}  // namespace tersekv::cli
