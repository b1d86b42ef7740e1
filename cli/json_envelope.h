// SPDX-License-Identifier: Apache-2.0
// What every --json of the tool is wrapped in: {"rows", "tersekv_version", "commit", "machine", "date"}.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tersekv::cli {

using Json = nlohmann::ordered_json;

Json Envelope(Json rows);
std::string Dump(const Json& json);  // indented, ends with a newline; text that is not UTF-8 is replaced

std::string Machine();                                              // "AMD EPYC 7B13, 8 cores"
std::string MachineFrom(std::string_view cpuinfo, unsigned cores);  // of the text of /proc/cpuinfo
std::string IsoDate(std::time_t time);                              // UTC, "2026-01-31T12:00:00Z"

}  // namespace tersekv::cli
