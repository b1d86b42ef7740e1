// SPDX-License-Identifier: Apache-2.0
// `tersekv codecs` and `--kv list`: every spec with its bits, bytes, distortion and cost.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tersekv/codec.h"

namespace tersekv::cli {

struct CodecsOptions {
  std::string json;  // path; empty = table
  bool no_measure = false;
};

CLI::App* AddCodecs(CLI::App* app, CodecsOptions* options);
int Codecs(const CodecsOptions& options);

const char* CostLetter(CodecCost cost);  // "-", "A", "B", "C"

}  // namespace tersekv::cli
