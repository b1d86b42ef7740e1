// SPDX-License-Identifier: Apache-2.0
#include "cli/json_envelope.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "cli/options.h"
#include "tersekv/version.h"

namespace tersekv::cli {

Json Envelope(Json rows) {
  Json json;
  json["rows"] = std::move(rows);
  json["tersekv_version"] = Version();
  json["commit"] = Commit();
  json["machine"] = Machine();
  json["date"] = IsoDate(std::time(nullptr));
  return json;
}

std::string Dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string Machine() {
  std::ifstream file("/proc/cpuinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return MachineFrom(text.str(), std::thread::hardware_concurrency());
}

std::string MachineFrom(std::string_view cpuinfo, unsigned cores) {
  std::string name;
  for (size_t begin = 0; begin < cpuinfo.size() && name.empty();) {
    const size_t end = std::min(cpuinfo.find('\n', begin), cpuinfo.size());
    const std::string_view line = cpuinfo.substr(begin, end - begin);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && Trim(line.substr(0, colon)) == "model name") {
      name = Trim(line.substr(colon + 1));
    }
    begin = end + 1;
  }
  if (name.empty()) {  // not x86
    utsname system{};
    name = uname(&system) == 0 ? system.machine : "unknown processor";
  }
  return fmt::format("{}, {} core{}", name, cores, cores == 1 ? "" : "s");
}

std::string IsoDate(std::time_t time) {
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc));
}

}  // namespace tersekv::cli
