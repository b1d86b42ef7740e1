// SPDX-License-Identifier: Apache-2.0
// What the TERSEKV_* variables of the environment ask of the preload object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/profile.h"
#include "tersekv/status.h"

namespace tersekv::llama {

struct Settings {
  std::string kv;  // TERSEKV_KV as given; empty: the object forwards everything
  std::shared_ptr<const Profile> profile;
  std::string profile_path;
  double bits = 0;      // 0 = as the spec says
  size_t kv_bytes = 0;  // 0 = what the requested context takes in f16
  int64_t ctx = 0;      // 0 = as the program asks, kAutoCtx = what the bytes hold
  bool share = true;    // equal pages are held once
  int64_t prefix = 0;   // tokens that all slots begin with, as far as sizes count
  bool strict = false;
  int status_port = -1;  // -1 = none, 0 = a free one
  std::string status_host = "127.0.0.1";
  int64_t drift = 0;       // forward passes between two checks, 0 = none
  double drift_limit = 0;  // 0 = what the bits say
  int log = 1;             // 0 errors, 1 a few lines a context, 2 a line a call

  static constexpr int64_t kAutoCtx = -1;
  bool active() const { return !kv.empty(); }
};

// get: the value of a variable, or null. A wrong value: the message names the variable, the value and what is possible.
Result<Settings> ParseSettings(const std::function<const char*(const char*)>& get);

// Names that begin with TERSEKV_ and that nothing of this version reads, of an environment as environ is.
std::vector<std::string> UnknownVariables(char* const* environment);

// Of this process, read once.
const Result<Settings>& TheSettings();

}  // namespace tersekv::llama
