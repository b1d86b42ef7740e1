// SPDX-License-Identifier: Apache-2.0
// Pages and raw rows -> fp32 tiles that the attention loop multiplies. Per-target include guard.
//   K tile: [head_dim_k][tokens], V tile: [tokens][stride]; packed values are integer levels, scales apply later.

#if defined(TERSEKV_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_TILE_INL_H_
#undef TERSEKV_CPU_TILE_INL_H_
#else
#define TERSEKV_CPU_TILE_INL_H_
#endif

#include "hwy/highway.h"
#include "src/bits/planes.h"
#include "src/cache/sequence.h"
#include "src/codec/lloyd_max.h"
#include "src/codec/page_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DB = hn::FixedTag<uint8_t, 16>;  // planes are unpacked 16 bytes at a time

inline constexpr size_t kByteSlack = 64;  // vectors may write this far past a row of bytes

// One plane of a row: m bytes -> 8/kWidth runs of m codes. Runs ascend, so a vector's excess is overwritten by the
// next.
template <int kWidth, int kGroup = 0>
HWY_INLINE void UnpackPlane(const uint8_t* HWY_RESTRICT plane, size_t m, uint8_t* HWY_RESTRICT out) {
  const DB d;
  for (size_t j = 0; j < m; j += 16) {
    const auto v = hn::ShiftRight<kGroup * kWidth>(hn::LoadU(d, plane + j));
    hn::StoreU(hn::And(v, hn::Set(d, static_cast<uint8_t>((1 << kWidth) - 1))), d, out + kGroup * m + j);
  }
  if constexpr ((kGroup + 1) * kWidth < 8) UnpackPlane<kWidth, kGroup + 1>(plane, m, out);
}

// The planes of one row, unpacked side by side: [0] 4 bits, [1] 2 bits, [2] 1 bit (kBits decides which exist).
struct RowPlanes {
  HWY_ALIGN uint8_t nibble[1024 + kByteSlack], crumb[1024 + kByteSlack], bit[1024 + kByteSlack];
};

// 16 levels at `at` of an unpacked row.
template <int kBits>
HWY_INLINE hn::Vec<hn::RebindToSigned<DB>> Levels(const RowPlanes& row, const uint8_t* bytes, size_t at,
                                                  const int8_t* table) {
  const DB d;
  const hn::RebindToSigned<DB> di;
  const auto lookup = hn::LoadU(di, table);
  if constexpr (kBits == 2) {
    return hn::TableLookupBytes(lookup, hn::BitCast(di, hn::LoadU(d, row.crumb + at)));
  } else if constexpr (kBits == 3) {
    const auto code = hn::Or(hn::LoadU(d, row.crumb + at), hn::ShiftLeft<2>(hn::LoadU(d, row.bit + at)));
    return hn::TableLookupBytes(lookup, hn::BitCast(di, code));
  } else if constexpr (kBits == 4) {
    return hn::TableLookupBytes(lookup, hn::BitCast(di, hn::LoadU(d, row.nibble + at)));
  } else if constexpr (kBits == 5) {  // magnitude index, sign
    const auto magnitude = hn::TableLookupBytes(lookup, hn::BitCast(di, hn::LoadU(d, row.nibble + at)));
    const auto sign = hn::Neg(hn::BitCast(di, hn::LoadU(d, row.bit + at)));
    return hn::Sub(hn::Xor(magnitude, sign), sign);
  } else if constexpr (kBits == 6) {
    const auto crumb = hn::LoadU(d, row.crumb + at);
    const auto index = hn::BitCast(di, hn::LoadU(d, row.nibble + at));
    const auto upper = hn::Ne(hn::And(crumb, hn::Set(d, uint8_t{1})), hn::Zero(d));
    const auto magnitude =
        hn::IfThenElse(hn::RebindMask(di, upper), hn::TableLookupBytes(hn::LoadU(di, table + 16), index),
                       hn::TableLookupBytes(lookup, index));
    const auto sign = hn::Neg(hn::BitCast(di, hn::ShiftRight<1>(crumb)));
    return hn::Sub(hn::Xor(magnitude, sign), sign);
  } else if constexpr (kBits == 7) {
    const auto code = hn::Or(hn::Or(hn::LoadU(d, row.nibble + at), hn::ShiftLeft<4>(hn::LoadU(d, row.crumb + at))),
                             hn::ShiftLeft<6>(hn::LoadU(d, row.bit + at)));
    return hn::BitCast(di, hn::Sub(code, hn::Set(d, uint8_t{63})));
  } else {
    return hn::BitCast(di, hn::Sub(hn::LoadU(d, bytes + at), hn::Set(d, uint8_t{127})));
  }
}

// What Levels looks up: levels by code, or magnitudes for the sign-magnitude widths.
template <int kBits>
HWY_INLINE void FillLookup(int8_t* table) {
  const LevelTable& levels = LevelsOf(kBits);
  for (int i = 0; i < 32; ++i) {
    const int half = 1 << (kBits - 1);
    const int code = (kBits == 5 || kBits == 6) ? half + i % half : i % (2 * half);
    table[i] = levels.level[static_cast<size_t>(code)];
  }
}

// rows plane rows of n codes -> fp32 levels, row r at out + r * stride.
template <int kBits>
void DecodeRows(const uint8_t* HWY_RESTRICT in, size_t rows, size_t n, float* HWY_RESTRICT out, size_t stride) {
  const DF df;
  const hn::Rebind<int32_t, DF> d32;
  const hn::Rebind<int8_t, DF> d8;
  const hn::RebindToSigned<DB> di;
  RowPlanes planes;
  HWY_ALIGN int8_t table[32];
  HWY_ALIGN int8_t levels[16];
  FillLookup<kBits>(table);
  const size_t row_bytes = PlaneRowBytes(n, kBits);
  for (size_t r = 0; r < rows; ++r) {
    const uint8_t* row = in + r * row_bytes;
    ForEachPlane(n, kBits, [&](int width, int, size_t offset) HWY_ATTR {
      const size_t m = n * static_cast<size_t>(width) / 8;
      if (width == 4) UnpackPlane<4>(row + offset, m, planes.nibble);
      if (width == 2) UnpackPlane<2>(row + offset, m, planes.crumb);
      if (width == 1) UnpackPlane<1>(row + offset, m, planes.bit);
    });
    float* to = out + r * stride;
    for (size_t at = 0; at < n; at += 16) {
      hn::Store(Levels<kBits>(planes, row, at, table), di, levels);
      for (size_t i = 0; i < 16; i += hn::Lanes(df)) {
        hn::StoreU(hn::ConvertTo(df, hn::PromoteTo(d32, hn::LoadU(d8, levels + i))), df, to + at + i);
      }
    }
  }
}

inline void DecodePacked(int bits, const uint8_t* in, size_t rows, size_t n, float* out, size_t stride) {
  switch (bits) {
    case 2:
      return DecodeRows<2>(in, rows, n, out, stride);
    case 3:
      return DecodeRows<3>(in, rows, n, out, stride);
    case 4:
      return DecodeRows<4>(in, rows, n, out, stride);
    case 5:
      return DecodeRows<5>(in, rows, n, out, stride);
    case 6:
      return DecodeRows<6>(in, rows, n, out, stride);
    case 7:
      return DecodeRows<7>(in, rows, n, out, stride);
    default:
      return DecodeRows<8>(in, rows, n, out, stride);
  }
}

// n values of f16 -> fp32.
HWY_INLINE void WidenF16(const uint16_t* in, size_t n, float* out) {
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> dh;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(in + i))), df, out + i);
  }
  for (; i < n; ++i) out[i] = F16ToF32(in[i]);
}

HWY_INLINE void WidenRaw(Family family, const uint8_t* in, size_t n, float* out) {
  if (family == Family::kF16) return WidenF16(reinterpret_cast<const uint16_t*>(in), n, out);
  if (family == Family::kF32) {
    memcpy(out, in, n * sizeof(float));
    return;
  }
  const uint16_t* half = reinterpret_cast<const uint16_t*>(in);
  for (size_t i = 0; i < n; ++i) out[i] = BF16ToF32(half[i]);
}

// The K part of a unit -> tile [d][page_tokens].
inline void LoadKTile(const SideLayout& side, const uint8_t* unit, float* tile) {
  const uint8_t* codes = unit + side.codes_offset;
  const size_t d = static_cast<size_t>(side.d), tokens = static_cast<size_t>(side.page_tokens);
  if (side.raw()) return WidenRaw(side.family, codes, d * tokens, tile);
  DecodePacked(side.bits, codes, d, tokens, tile, tokens);
}

// Tokens [begin, end) of the V part of a unit -> rows of the tile.
inline void LoadVTile(const SideLayout& side, const uint8_t* unit, size_t begin, size_t end, float* tile,
                      size_t stride) {
  const uint8_t* codes = unit + side.codes_offset + begin * side.row_bytes();
  const size_t d = static_cast<size_t>(side.d);
  if (!side.raw()) return DecodePacked(side.bits, codes, end - begin, d, tile + begin * stride, stride);
  for (size_t t = begin; t < end; ++t, codes += side.row_bytes()) WidenRaw(side.family, codes, d, tile + t * stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
