// SPDX-License-Identifier: Apache-2.0
#include "src/transform/sign_stream.h"

namespace tersekv {

void FillSigns(uint64_t seed, int layer, int kv_head, bool value_side, int d, float* signs) {
  for (int j = 0; j < d; ++j) {
    const uint64_t word = SignWord(seed, layer, kv_head, value_side, j / 64);
    signs[j] = (word >> (j % 64)) & 1 ? -1.0f : 1.0f;
  }
}

}  // namespace tersekv
