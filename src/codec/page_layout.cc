// SPDX-License-Identifier: Apache-2.0
#include "src/codec/page_layout.h"

#include <cstring>
#include <limits>

#include "src/base/half.h"
#include "src/bits/blocks.h"
#include "src/codec/record_list.h"

namespace tersekv {
namespace {

SideLayout MakeSide(const KvSpec& spec, Kv kv, int d) {
  const SideSpec& from = kv == Kv::kK ? spec.k : spec.v;
  SideLayout side;
  side.family = from.family;
  side.storage = StorageOf(from.family);
  side.bits = static_cast<int>(from.bits);
  side.d = d;
  side.page_tokens = spec.page;
  side.token_major = kv == Kv::kV;
  side.page_mean = spec.mean == MeanMode::kPage && !side.raw();
  if (side.storage == Storage::kRecords) {
    side.record = RecordShapeOf(spec, kv, d);
    WithRecordTag(side.family, kv, [&side](auto tag) {
      side.record_bytes = tag.Bytes(side.record);
      side.page_record = tag.kPage;
    });
  }
  return side;
}

// Index of value (slot, channel) in a raw side.
size_t RawIndex(const SideLayout& side, int slot, int c) {
  return side.token_major ? static_cast<size_t>(slot) * static_cast<size_t>(side.d) + static_cast<size_t>(c)
                          : static_cast<size_t>(c) * static_cast<size_t>(side.page_tokens) + static_cast<size_t>(slot);
}

bool SignMagnitude(int bits) { return bits == 5 || bits == 6; }

}  // namespace

PageLayout PageLayout::Make(const KvSpec& spec, const LayerShape& shape) {
  PageLayout layout;
  layout.kv_heads = shape.kv_heads;
  layout.page_tokens = spec.page;
  layout.latent = shape.latent;
  layout.k = MakeSide(spec, Kv::kK, shape.head_dim_k);
  if (shape.latent && !layout.k.raw()) {
    layout.k = MakeSide(spec, Kv::kK, shape.head_dim_v);
    layout.rotary = shape.head_dim_k - shape.head_dim_v;
  }
  layout.v = MakeSide(spec, Kv::kV, shape.head_dim_v);
  for (SideLayout* side : {&layout.k, &layout.v}) {
    if (shape.latent && side == &layout.v) break;
    side->codes_offset = layout.unit_bytes;
    side->scales_offset = side->codes_offset + side->codes_bytes();
    side->mean_offset = side->scales_offset + side->scales_bytes();
    layout.unit_bytes = side->mean_offset + side->mean_bytes();
  }
  layout.rotary_offset = layout.unit_bytes;
  layout.unit_bytes += static_cast<size_t>(layout.rotary) * static_cast<size_t>(layout.page_tokens) * sizeof(uint16_t);
  layout.page_bytes = layout.unit_bytes * static_cast<size_t>(shape.kv_heads);
  return layout;
}

uint8_t StoredCode(int bits, uint8_t code) {
  if (bits == 8) return static_cast<uint8_t>(code + 1);
  if (!SignMagnitude(bits)) return code;
  const int half = 1 << (bits - 1);
  return static_cast<uint8_t>(code >= half ? code - half : (half - 1 - code) | half);
}

uint8_t CanonicalCode(int bits, uint8_t stored) {
  if (bits == 8) return static_cast<uint8_t>(stored - 1);
  if (!SignMagnitude(bits)) return stored;
  const int half = 1 << (bits - 1);
  const int magnitude = stored & (half - 1);
  return static_cast<uint8_t>((stored & half) != 0 ? half - 1 - magnitude : half + magnitude);
}

void PackToken(const SideLayout& side, uint8_t* unit, int slot, const uint8_t* codes, uint16_t scale) {
  uint8_t stored[1024];
  for (size_t c = 0; c < static_cast<size_t>(side.d); ++c) stored[c] = StoredCode(side.bits, codes[c]);
  uint8_t* base = unit + side.codes_offset;
  const size_t at = static_cast<size_t>(slot);
  if (side.token_major) {
    SetBlockRow(base, side.bits, side.depth(), side.width(), at, stored);
  } else {
    SetBlockColumn(base, side.bits, side.depth(), at, stored);
  }
  std::memcpy(unit + side.scales_offset + at * 2, &scale, 2);
}

void UnpackToken(const SideLayout& side, const uint8_t* unit, int slot, uint8_t* codes, uint16_t* scale) {
  const uint8_t* base = unit + side.codes_offset;
  const size_t at = static_cast<size_t>(slot);
  for (size_t c = 0; c < static_cast<size_t>(side.d); ++c) {
    codes[c] = CanonicalCode(side.bits, GetBlockCode(base, side.bits, side.depth(), side.width(),
                                                     side.token_major ? at : c, side.token_major ? c : at));
  }
  std::memcpy(scale, unit + side.scales_offset + at * 2, 2);
}

void PackRotary(const PageLayout& layout, uint8_t* unit, int slot, const uint16_t* row) {
  uint8_t* to = unit + layout.rotary_offset + static_cast<size_t>(slot) * sizeof *row;
  const size_t stride = static_cast<size_t>(layout.page_tokens) * sizeof *row;
  for (int c = 0; c < layout.rotary; ++c, to += stride) std::memcpy(to, &row[c], sizeof *row);
}

void UnpackRotary(const PageLayout& layout, const uint8_t* unit, int slot, uint16_t* row) {
  const uint8_t* from = unit + layout.rotary_offset + static_cast<size_t>(slot) * sizeof *row;
  const size_t stride = static_cast<size_t>(layout.page_tokens) * sizeof *row;
  for (int c = 0; c < layout.rotary; ++c, from += stride) std::memcpy(&row[c], from, sizeof *row);
}

float OverflowsAt(Family family) {
  if (family == Family::kF16) return 65520.0f;
  return family == Family::kBF16 ? 0x1.ffp127f : std::numeric_limits<float>::infinity();
}

void PackRawToken(const SideLayout& side, uint8_t* unit, int slot, const float* row) {
  uint8_t* base = unit + side.codes_offset;
  for (int c = 0; c < side.d; ++c) {
    const size_t i = RawIndex(side, slot, c);
    if (side.family == Family::kF32) {
      std::memcpy(base + 4 * i, &row[c], 4);
    } else {
      const uint16_t half = side.family == Family::kF16 ? F32ToF16(row[c]) : F32ToBF16(row[c]);
      std::memcpy(base + 2 * i, &half, 2);
    }
  }
}

void UnpackRawToken(const SideLayout& side, const uint8_t* unit, int slot, float* row) {
  const uint8_t* base = unit + side.codes_offset;
  for (int c = 0; c < side.d; ++c) {
    const size_t i = RawIndex(side, slot, c);
    if (side.family == Family::kF32) {
      std::memcpy(&row[c], base + 4 * i, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, base + 2 * i, 2);
      row[c] = side.family == Family::kF16 ? F16ToF32(half) : BF16ToF32(half);
    }
  }
}

}  // namespace tersekv
