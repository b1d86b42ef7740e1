// SPDX-License-Identifier: Apache-2.0
// `tersekv dump-kv`: the keys and values of a text in a model, as NumPy files.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/options.h"

namespace tersekv::cli {

struct DumpKvOptions {
  EngineOptions engine;
  std::string text, out;
  int64_t tokens = 2048;
  std::string type = "f16";
  bool queries = false;
  bool quiet = false;
};

CLI::App* AddDumpKv(CLI::App* app, DumpKvOptions* options);
int DumpKv(const DumpKvOptions& options);

}  // namespace tersekv::cli
