// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/settings.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "src/base/check.h"
#include "tersekv/cache.h"
#include "tersekv/numbers.h"

namespace tersekv::llama {
namespace {

Status Wrong(const char* name, std::string_view value, std::string_view possible) {
  return InvalidArgument(fmt::format("{}={}: {}", name, value, possible));
}

bool IsAddress(const std::string& text) {
  in6_addr room;
  return inet_pton(AF_INET, text.c_str(), &room) == 1 || inet_pton(AF_INET6, text.c_str(), &room) == 1;
}

}  // namespace

Result<Settings> ParseSettings(const std::function<const char*(const char*)>& get) {
  const auto read = [&get](const char* name) {
    const char* value = get(name);
    return std::string_view(value != nullptr ? value : "");
  };
  Settings settings;
  settings.kv = read("TERSEKV_KV");
  if (!settings.active()) return settings;
  const Result<KvSpec> spec = ParseSpec(settings.kv);
  if (!spec) return Wrong("TERSEKV_KV", settings.kv, spec.error().message());
  if (spec->k.family != Family::kAuto) {
    if (const Status s = CheckSupported(*spec); !s.ok()) return Wrong("TERSEKV_KV", settings.kv, s.message());
  }
  if (const auto v = read("TERSEKV_LOG"); !v.empty()) {
    if (v != "0" && v != "1" && v != "2") return Wrong("TERSEKV_LOG", v, "0, 1 or 2");
    settings.log = v[0] - '0';
  }
  if (const auto v = read("TERSEKV_STRICT"); !v.empty()) {
    if (v != "0" && v != "1") return Wrong("TERSEKV_STRICT", v, "0 or 1");
    settings.strict = v == "1";
  }
  if (const auto v = read("TERSEKV_KV_BYTES"); !v.empty()) {
    const Result<size_t> bytes = ParseBytes(v);
    if (!bytes) return Wrong("TERSEKV_KV_BYTES", v, bytes.error().message());
    settings.kv_bytes = *bytes;
  }
  if (const auto v = read("TERSEKV_CTX"); v == "auto") {
    settings.ctx = Settings::kAutoCtx;
  } else if (!v.empty()) {
    settings.ctx = ParseWhole(v).value_or(0);
    if (settings.ctx < 256 || settings.ctx > INT32_MAX - 256) {
      return Wrong("TERSEKV_CTX", v, "a number of tokens from 256 on, or auto: as many as the bytes hold");
    }
  }
  if (const auto v = read("TERSEKV_PREFIX"); !v.empty() && v != "on") {
    settings.share = v != "off";
    if (settings.share) settings.prefix = ParseWhole(v).value_or(0);
    if (settings.share && (settings.prefix < 1 || settings.prefix > INT32_MAX)) {
      return Wrong(
          "TERSEKV_PREFIX", v,
          "on or off: pages that slots have in common are held once, or a number of tokens that all slots begin "
          "with, which sizes then count once");
    }
  }
  if (const auto v = read("TERSEKV_STATUS_PORT"); !v.empty()) {
    const int64_t port = ParseWhole(v).value_or(-1);
    if (port < 0 || port > 65535) return Wrong("TERSEKV_STATUS_PORT", v, "a port from 1 to 65535, or 0: a free one");
    settings.status_port = static_cast<int>(port);
  }
  if (const auto v = read("TERSEKV_STATUS_HOST"); !v.empty()) {
    settings.status_host = v;
    if (!IsAddress(settings.status_host)) return Wrong("TERSEKV_STATUS_HOST", v, "an address, as 127.0.0.1 or ::1");
  }
  if (const auto v = read("TERSEKV_DRIFT"); !v.empty()) {
    settings.drift = ParseWhole(v).value_or(-1);
    if (settings.drift < 0) return Wrong("TERSEKV_DRIFT", v, "forward passes between two checks, as 64; 0: none");
  }
  if (const auto v = read("TERSEKV_DRIFT_LIMIT"); !v.empty()) {
    settings.drift_limit = ParseReal(v).value_or(0);
    if (!(settings.drift_limit > 0)) return Wrong("TERSEKV_DRIFT_LIMIT", v, "a relative error above 0, as 0.3");
  }
  if (const auto v = read("TERSEKV_PREFILL"); !v.empty() && v != "decode") {
    return Wrong("TERSEKV_PREFILL", v,
                 "this version knows only decode: each query of a prompt sees what decoding would");
  }
  if (const auto v = read("TERSEKV_DETERMINISTIC"); !v.empty() && v != "0" && v != "1") {
    return Wrong("TERSEKV_DETERMINISTIC", v, "0 or 1 (results do not depend on the number of threads either way)");
  }
  if (const auto v = read("TERSEKV_PROFILE"); !v.empty()) {
    settings.profile_path = v;
    Result<Profile> profile = LoadProfile(settings.profile_path);
    if (!profile) return Wrong("TERSEKV_PROFILE", v, profile.error().message());
    settings.profile = std::make_shared<const Profile>(std::move(*profile));
  }
  if (const auto v = read("TERSEKV_BITS"); !v.empty()) {
    settings.bits = ParseReal(v).value_or(0);
    if (!(settings.bits > 0)) return Wrong("TERSEKV_BITS", v, "an average of bits, as 3.5");
    if (settings.profile == nullptr) return Wrong("TERSEKV_BITS", v, "needs TERSEKV_PROFILE, which knows the bits");
    if (const auto entry = FindBudget(*settings.profile, settings.bits); !entry) {
      return Wrong("TERSEKV_BITS", v, entry.error().message());
    }
  }
  return settings;
}

std::vector<std::string> UnknownVariables(char* const* environment) {
  constexpr std::string_view kKnown[] = {"KV",          "PROFILE", "BITS",    "KV_BYTES",      "CTX",
                                         "STRICT",      "LOG",     "PREFILL", "DETERMINISTIC", "STATUS_PORT",
                                         "STATUS_HOST", "PREFIX",  "DRIFT",   "DRIFT_LIMIT",   "FORCE_ISA",
                                         "CACHE_DIR",   "THREADS"};
  std::vector<std::string> unknown;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable = *environment, name = variable.substr(0, variable.find('='));
    if (!name.starts_with("TERSEKV_") || name.starts_with("TERSEKV_TEST_")) continue;
    if (std::ranges::find(kKnown, name.substr(8)) == std::end(kKnown)) unknown.emplace_back(name);
  }
  return unknown;
}

// Never destroyed: contexts speak until the program has ended.
const Result<Settings>& TheSettings() {
  static const Result<Settings>& settings =
      *new Result<Settings>(ParseSettings([](const char* name) { return std::getenv(name); }));
  return settings;
}

}  // namespace tersekv::llama
