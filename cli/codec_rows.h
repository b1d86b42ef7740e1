// SPDX-License-Identifier: Apache-2.0
// Distortion of codecs on rows of a file (`tersekv bench codec --rows`).
#pragma once

#include <string>
#include <vector>

#include "cli/json_envelope.h"
#include "cli/rows.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv::cli {

// kUnsupported for mean=profile: there is none.
Status CheckRowSpec(const KvSpec& spec);
// One row a spec and side: bits, D relative to the power of the rows and to their power about the mean.
Result<Json> DistortionOfRows(const std::vector<std::string>& specs, const Rows& rows);
std::string DistortionTable(const Json& rows);

}  // namespace tersekv::cli
