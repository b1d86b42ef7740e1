// SPDX-License-Identifier: Apache-2.0
#include "src/cache/unpack.h"

#include <array>
#include <cstring>

#include "src/base/half.h"
#include "src/codec/lloyd_max.h"

namespace tersekv {

void MeasurePageMean(const HeadCodec& codec, const float* rows, size_t n, uint8_t* out) {
  const size_t d = static_cast<size_t>(codec.d);
  for (size_t c = 0; c < d; ++c) {
    double sum = 0;
    for (size_t t = 0; t < n; ++t) {
      float v = rows[t * d + c];
      if (codec.mean != nullptr) v -= codec.mean[c];
      if (codec.inv_scale != nullptr) v *= codec.inv_scale[c];
      sum += static_cast<double>(v);
    }
    const uint16_t half = F32ToBF16(static_cast<float>(sum / static_cast<double>(n)));
    std::memcpy(out + 2 * c, &half, 2);
  }
}

void ReadPageMean(const SideLayout& side, const uint8_t* unit, float* mean) {
  for (size_t c = 0; c < static_cast<size_t>(side.d); ++c) {
    uint16_t half;
    std::memcpy(&half, unit + side.mean_offset + 2 * c, 2);
    mean[c] = BF16ToF32(half);
  }
}

void UnpackRow(const SideLayout& side, HeadCodec codec, const Encoder& encoder, const uint8_t* unit, size_t slot,
               float* row) {
  const size_t d = static_cast<size_t>(side.d);
  if (side.storage == Storage::kRecords) {
    encoder.DecodeRecords(codec, unit + side.codes_offset, slot, slot + 1, row);
  } else {
    std::array<uint8_t, 1024> codes;  // the largest head_dim
    uint16_t scale;
    UnpackToken(side, unit, static_cast<int>(slot), codes.data(), &scale);
    const LevelTable& table = LevelsOf(side.bits);
    for (size_t c = 0; c < d; ++c) row[c] = BF16ToF32(scale) * static_cast<float>(table.level[codes[c]]);
  }
  if (side.page_mean) {
    codec.page_mean = row + 2 * d;
    ReadPageMean(side, unit, row + 2 * d);
  }
  RestoreRow(codec, row, row + d);
}

}  // namespace tersekv
