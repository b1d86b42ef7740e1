// SPDX-License-Identifier: Apache-2.0
// `tersekv inspect`: what is in a profile.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/json_envelope.h"
#include "tersekv/profile.h"

namespace tersekv::cli {

struct InspectOptions {
  std::string file, json;
};

CLI::App* AddInspect(CLI::App* app, InspectOptions* options);
int Inspect(const InspectOptions& options);

struct BudgetRow {
  BudgetEntry entry;
  std::optional<double> uniform_kl;  // measured with the same bytes spread evenly
};
std::string BudgetText(const Profile& profile, const std::vector<BudgetRow>& rows);
Json BudgetJson(const std::vector<BudgetRow>& rows);

}  // namespace tersekv::cli
