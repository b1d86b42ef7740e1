// SPDX-License-Identifier: Apache-2.0
// `tersekv run`: one prompt, its answer as it comes, and what it took.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/options.h"
#include "cli/profiles.h"
#include "cli/sampler.h"

namespace tersekv::cli {

struct RunOptions {
  EngineOptions engine;
  ProfileOptions profile;
  std::string kv = "k4v4";
  std::string prompt, file, system;
  bool chat = false, no_chat = false;  // neither: chat when the model has a template
  int n = 256;
  int spec_lookup = 0;  // most tokens of a draft; 0 = none
  SamplerOptions sampler;
  std::string session, save_session;
  std::string json;
  bool quiet = false;
};

CLI::App* AddRun(CLI::App* app, RunOptions* options);
int Run(const RunOptions& options);

}  // namespace tersekv::cli
