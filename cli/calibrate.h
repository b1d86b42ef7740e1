// SPDX-License-Identifier: Apache-2.0
// `tersekv calibrate`: statistics of a model's cache and the best bits of each layer, as a profile.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "tersekv/llama_calibration.h"
#include "tersekv/profile.h"

namespace tersekv::cli {

struct CalibrateOptions {
  EngineOptions engine;
  std::string text;  // empty = built in
  std::string out;
  int64_t tokens = 8192;  // of statistics
  std::string bits = "2.5,3,3.5,4,4.5,5,6,8";
  int protect_first = 0, protect_last = 0;
  int kl_contexts = 2;
  int64_t kl_context = 512;
  std::string json;
  bool quiet = false;
};

CLI::App* AddCalibrate(CLI::App* app, CalibrateOptions* options);
int CalibrateCommand(const CalibrateOptions& options);

// -m, --text, --tokens, --threads, --mode, as calibrate and probe share them.
void AddTextOptions(CLI::App* app, CalibrateOptions* options);

// Loads the model and cuts the text; nothing is measured yet. key, unless null: 16 hexadecimal digits that differ for
// other texts and other options that a profile depends on.
Result<std::unique_ptr<llama::LlamaCalibrationHost>> OpenCalibration(const CalibrateOptions& options,
                                                                     std::string* key = nullptr);
// All of it, with progress on stderr.
Result<Profile> RunCalibration(const CalibrateOptions& options, llama::LlamaCalibrationHost* host);
// Statistics only: no widths, no table.
Result<Profile> RunStatistics(const CalibrateOptions& options, llama::LlamaCalibrationHost* host);

std::string_view BuiltInText();  // English prose and C++

}  // namespace tersekv::cli
