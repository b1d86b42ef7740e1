// SPDX-License-Identifier: Apache-2.0
// `tersekv probe`: what the statistics of a model's cache predict, and which spec they recommend.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/calibrate.h"
#include "tersekv/calibration.h"

namespace tersekv::cli {

struct ProbeOptions {
  CalibrateOptions text;  // model, text, tokens, threads, json, quiet
  std::string profile;    // in place of a model
  std::string svg;
};

CLI::App* AddProbe(CLI::App* app, ProbeOptions* options);
int ProbeCommand(const ProbeOptions& options);

std::string ProbeText(const ProbeReport& report);
std::string ProbeSvg(const ProbeReport& report, const std::string& model);  // a whole file

}  // namespace tersekv::cli
