// SPDX-License-Identifier: Apache-2.0
#include "src/bits/pack.h"

namespace tersekv {

void PackBits(const uint8_t* codes, size_t n, int bits, uint8_t* out) {
  uint32_t pending = 0;
  int held = 0;
  for (size_t i = 0; i < n; ++i) {
    pending |= static_cast<uint32_t>(codes[i]) << held;
    held += bits;
    if (held >= 8) {
      *out++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      held -= 8;
    }
  }
  if (held > 0) *out = static_cast<uint8_t>(pending);
}

void UnpackBits(const uint8_t* in, size_t n, int bits, uint8_t* codes) {
  uint32_t pending = 0;
  int held = 0;
  for (size_t i = 0; i < n; ++i) {
    if (held < bits) {
      pending |= static_cast<uint32_t>(*in++) << held;
      held += 8;
    }
    codes[i] = static_cast<uint8_t>(pending & ((1u << bits) - 1));
    pending >>= bits;
    held -= bits;
  }
}

}  // namespace tersekv
