// SPDX-License-Identifier: Apache-2.0
// What the preload object tells its user: lines on stderr that begin with "tersekv: ".
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "hosts/llama/preload/settings.h"

namespace tersekv::llama {

// level as in Settings::log.
template <class... Args>
void Say(int level, fmt::format_string<Args...> format, Args&&... args) {
  const Result<Settings>& settings = TheSettings();
  if (level > (settings ? settings->log : 1)) return;
  const std::string line = "tersekv: " + fmt::format(format, std::forward<Args>(args)...) + "\n";
  std::fputs(line.c_str(), stderr);
}

// A function of llama.h that failed by an exception. Allocates nothing: memory may be what has run out.
inline void SayFailed(const char* function, const char* why) {
  std::fprintf(stderr, "tersekv: %s failed: %s\n", function, why);
}

}  // namespace tersekv::llama
