// SPDX-License-Identifier: Apache-2.0
// Rows of `tersekv eval` as JSON, CSV and text; one list of columns for the first two.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/eval_metrics.h"
#include "cli/json_envelope.h"
#include "tersekv/cache.h"

namespace tersekv::cli {

struct EvalRow {
  std::string spec;
  double bits_spec = 0;
  CacheUsage usage;  // at the end of the last context
  Summary summary;
  double reference_ppl = 0;
  double prefill_tps = 0, decode_tps = 0;
  int64_t tokens = 0;   // scored
  int64_t context = 0;  // tokens a context
};

Json ToJson(const EvalRow& row);  // the columns of the contract, in its order; dppl = ppl / reference ppl - 1
std::string ToCsv(const std::vector<EvalRow>& rows);
std::string ToText(const std::vector<EvalRow>& rows);

double CompressionRatio(const CacheUsage& usage);  // f16 bytes over bytes used

}  // namespace tersekv::cli
