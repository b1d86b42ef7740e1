// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

namespace tersekv::cli {
namespace {

void ToStderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(std::string label, bool quiet)
    : Progress(std::move(label), ::isatty(STDERR_FILENO) == 1, quiet ? Sink() : Sink(ToStderr)) {}

Progress::Progress(std::string label, bool terminal, Sink sink)
    : label_(std::move(label)), terminal_(terminal), sink_(std::move(sink)) {}

void Progress::Update(size_t done, size_t total) {
  if (!sink_ || total == 0) return;
  int percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  if (!terminal_) percent -= percent % 25;
  if (percent <= shown_ || (!terminal_ && percent == 0)) return;
  shown_ = percent;
  sink_(fmt::format("{}{}: {}% ({} of {}){}", terminal_ ? "\r" : "", label_, percent, done, total,
                    terminal_ ? "\033[K" : "\n"));
  open_ = terminal_;
}

void Progress::Finish() {
  if (open_) sink_("\n");
  open_ = false;
}

std::string Duration(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::fmax(seconds, 0)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

std::string Size(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

}  // namespace tersekv::cli
