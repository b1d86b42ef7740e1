// SPDX-License-Identifier: Apache-2.0
// Tokens may end inside a character; only whole UTF-8 sequences are shown.
#pragma once

#include <string>
#include <string_view>

namespace tersekv::cli {

class Utf8Stream {
 public:
  // Takes bytes, gives back the text that is complete. A byte that can never become valid turns into U+FFFD.
  std::string Push(std::string_view bytes);
  // The end: a sequence that is still open turns into U+FFFD.
  std::string Flush();

 private:
  std::string pending_;
};

}  // namespace tersekv::cli
