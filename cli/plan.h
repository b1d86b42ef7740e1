// SPDX-License-Identifier: Apache-2.0
// `tersekv plan`: how long contexts are and how many slots there are in so many bytes, by spec.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/profiles.h"

namespace tersekv::cli {

struct PlanOptions {
  EngineOptions engine;
  ProfileOptions profile;
  std::string kv = "stock-f16,stock-q8_0,stock-q4_0,k8v8,k6v6,k4v4,k4v3,k3v3";
  std::string memory, reserve = "256M";
  std::string slots = "1,4,16", contexts = "4096,32768";
  int64_t prefix = 0;
  std::string json;
};

CLI::App* AddPlan(CLI::App* app, PlanOptions* options);
int Plan(const PlanOptions& options);

// One spec. Slots have a context each; all of them share the bytes evenly, as under `tersekv serve`.
struct PlanRow {
  std::string name;
  double bits_spec = 0;
  std::vector<int64_t> tokens;  // of each slot, by number of slots; a multiple of 256, as n_ctx is
  std::vector<int64_t> slots;   // by context
  std::vector<size_t> bytes;    // of one slot whose context is full, by context
};
struct PlanQuestion {
  size_t bytes = 0;               // of the history
  std::vector<int64_t> slots;     // ascending, 1 to 4096
  std::vector<int64_t> contexts;  // tokens
  int64_t prefix = 0;             // tokens that all slots begin with
};
// Of a packed cache as the preload object makes it; where it has windows, keep_back counts the tokens of a step too.
Result<PlanRow> PlanPacked(const CacheConfig& config, const PlanQuestion& question);

}  // namespace tersekv::cli
