// SPDX-License-Identifier: Apache-2.0
#include "src/codec/head_codec.h"

namespace tersekv {

void RestoreRow(const HeadCodec& codec, float* row, float* scratch) {
  codec.rotation->ApplyTransposed(row, scratch);
  for (int c = 0; c < codec.d; ++c) {
    if (codec.page_mean != nullptr) row[c] += codec.page_mean[c];
    if (codec.scale != nullptr) row[c] *= codec.scale[c];
    if (codec.mean != nullptr) row[c] += codec.mean[c];
  }
}

}  // namespace tersekv
