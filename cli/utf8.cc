// SPDX-License-Identifier: Apache-2.0
#include "cli/utf8.h"

#include <algorithm>

namespace tersekv::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the sequence that `lead` starts; 0 when none does (RFC 3629).
size_t SequenceLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte's range keeps out overlong forms, surrogates and what is beyond U+10FFFF.
bool ValidSecond(unsigned char lead, unsigned char second) {
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  pending_.append(bytes);
  std::string out;
  size_t i = 0;
  while (i < pending_.size()) {
    const auto lead = static_cast<unsigned char>(pending_[i]);
    const size_t length = SequenceLength(lead);
    if (length == 0) {
      out += kReplacement;
      ++i;
      continue;
    }
    const size_t there = std::min(length, pending_.size() - i);
    size_t good = 1;
    while (good < there) {
      const auto byte = static_cast<unsigned char>(pending_[i + good]);
      if (!(good == 1 ? ValidSecond(lead, byte) : (byte & 0xC0) == 0x80)) break;
      ++good;
    }
    if (good < there) {  // broken by the next byte, which starts anew
      out += kReplacement;
    } else if (there < length) {  // wait for the rest
      break;
    } else {
      out.append(pending_, i, length);
    }
    i += good;
  }
  pending_.erase(0, i);
  return out;
}

std::string Utf8Stream::Flush() {
  const bool open = !pending_.empty();
  pending_.clear();
  return open ? std::string(kReplacement) : std::string();
}

}  // namespace tersekv::cli
