// SPDX-License-Identifier: Apache-2.0
#include "src/cache/unpack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/codec/lloyd_max.h"

#define TERSEKV_INL_NAMESPACE page_mean_plain
#include "src/codec/normalise-inl.h"

namespace tersekv {

void MeasurePageMean(HeadCodec codec, const float* rows, size_t n, uint8_t* out) {
  codec.page_mean = nullptr;  // of the page before
  const size_t d = static_cast<size_t>(codec.d);
  std::array<double, 1024> sum = {};  // the largest head_dim
  std::array<float, 1024> row;
  for (size_t t = 0; t < n; ++t) {
    std::copy(rows + t * d, rows + (t + 1) * d, row.begin());
    page_mean_plain::Normalise(ScalarLanes(), codec, row.data());
    for (size_t c = 0; c < d; ++c) sum[c] += static_cast<double>(row[c]);
  }
  for (size_t c = 0; c < d; ++c) {
    const uint16_t half = F32ToBF16(static_cast<float>(sum[c] / static_cast<double>(n)));
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
