// SPDX-License-Identifier: Apache-2.0
// What `tersekv eval --resume FILE` keeps of the contexts that are done, so that hours of scoring survive a stop.
#pragma once

#include <string>
#include <vector>

#include "cli/evaluation.h"
#include "cli/json_envelope.h"

namespace tersekv::cli {

// All that the numbers depend on: program, machine, model, text, contexts, caches.
Json EvalIdentity(const EvalPlan& plan, const std::vector<Candidate>& candidates);

// Writes the scores of `done` contexts; the old file stays whole until the new one is.
Status SaveEvalState(const std::string& path, const Json& identity, int done, const std::vector<Candidate>& candidates);

// Contexts that are done, their scores put into the candidates; 0 when there is no file. kInvalidArgument names the
// part that differs from `identity`, kDataLoss a file that is none of ours; the file is left as it is.
Result<int> LoadEvalState(const std::string& path, const Json& identity, const EvalPlan& plan,
                          std::vector<Candidate>* candidates);

}  // namespace tersekv::cli
