// SPDX-License-Identifier: Apache-2.0
// Progress of long work on stderr: one line that is redrawn on a terminal, a line every quarter elsewhere.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tersekv::cli {

class Progress {
 public:
  using Sink = std::function<void(std::string_view)>;

  // Prints to stderr; nothing at all when quiet.
  Progress(std::string label, bool quiet);
  Progress(std::string label, bool terminal, Sink sink);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(size_t done, size_t total);
  void Finish();  // ends the line of a terminal

 private:
  std::string label_;
  bool terminal_;
  Sink sink_;
  int shown_ = -1;     // percent
  bool open_ = false;  // a line without its end is on the terminal
};

std::string Duration(double seconds);  // "12 s", "3 min 20 s", "2 h 5 min"
std::string Size(double bytes);        // "512 B", "3.20 MiB"

}  // namespace tersekv::cli
