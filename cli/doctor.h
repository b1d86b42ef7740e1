// SPDX-License-Identifier: Apache-2.0
// `tersekv doctor`: what this build finds here, and whether it works.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/options.h"

namespace tersekv::cli {

struct DoctorOptions {
  EngineOptions engine;
  std::string kv = "k4v4";
  std::vector<int> shape = {32, 8, 128};  // heads, KV heads, head_dim
  std::string json;
};

CLI::App* AddDoctor(CLI::App* app, DoctorOptions* options);
int Doctor(const DoctorOptions& options);

struct Check {
  std::string name;
  enum class State { kInfo, kOk, kFailed } state = State::kInfo;
  std::string detail;
};
// "verdict: ready" or "verdict: NOT ready: " and every reason.
std::string Verdict(const std::vector<Check>& checks);

}  // namespace tersekv::cli
