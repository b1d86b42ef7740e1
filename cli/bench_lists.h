// SPDX-License-Identifier: Apache-2.0
// What the bench commands share: which caches at which depths, and how results are given out.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/json_envelope.h"
#include "tersekv/status.h"

namespace tersekv::cli {

std::vector<std::string> SplitList(const std::string& list);        // at commas, trimmed; "" is no element
Result<std::vector<int64_t>> ParseDepths(const std::string& list);  // "0,4096": tokens, each below 2^30

struct BenchOptions {
  std::string depths, kv = "k4v4", peers = "f16,q8_0,q4_0";
  int repeat = 5;
  std::string json = {};
  bool quiet = false;
};
void AddBenchOptions(CLI::App* app, BenchOptions* options);
void AddNumber(CLI::App* app, const char* name, int* value, int least, int most, const char* help);

struct BenchLists {
  std::vector<std::string> specs, peers;  // ours; llama.cpp's types
  std::vector<int64_t> depths;
};
Result<BenchLists> ListsOf(const BenchOptions& options);

// The table to standard output, or to standard error when JSON goes there.
Status ReportBench(const BenchOptions& options, const std::string& table, const Json& rows);

}  // namespace tersekv::cli
