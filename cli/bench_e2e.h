// SPDX-License-Identifier: Apache-2.0
// `tersekv bench e2e`: whole tokens of a model at a depth, ours and llama.cpp's own caches, alternating in one run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/options.h"

namespace tersekv::cli {

struct BenchE2eOptions {
  EngineOptions engine;
  std::string depths = "0,4096";
  std::string kv = "k4v4";
  std::string peers = "f16,q8_0,q4_0";
  int sequences = 1, tokens = 4, repeat = 5, prefill = 0;
  std::string json;
  bool quiet = false;
};

CLI::App* AddBenchE2e(CLI::App* app, BenchE2eOptions* options);
int BenchE2e(const BenchE2eOptions& options);

}  // namespace tersekv::cli
