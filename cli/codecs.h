// SPDX-License-Identifier: Apache-2.0
// `tersekv codecs` and `--kv list`: every spec with its bits and bytes.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tersekv::cli {

struct CodecsOptions {
  std::string json;  // path; empty = table
};

CLI::App* AddCodecs(CLI::App* app, CodecsOptions* options);
int Codecs(const CodecsOptions& options);

}  // namespace tersekv::cli
