// SPDX-License-Identifier: Apache-2.0
// Pages and raw rows -> fp32 tiles that the attention loop multiplies. Per-target include guard.
//   K tile: [head_dim_k][tokens], V tile: [tokens][stride]; packed values are levels, scales apply later.

#if defined(TERSEKV_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_TILE_INL_H_
#undef TERSEKV_CPU_TILE_INL_H_
#else
#define TERSEKV_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "src/base/half.h"
#include "src/cache/sequence.h"
#include "src/cache/unpack.h"
#include "src/codec/list.h"
#include "src/codec/page_layout.h"
#include "src/cpu/attend.h"
#include "src/cpu/integer_product-inl.h"
#include "src/cpu/records.h"
#include "src/transform/rotation.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// codes of depth x width -> their levels, [depth][stride].
template <int kBits>
void DecodeFloats(const uint8_t* codes, size_t depth, size_t width, const uint8_t* next, float* HWY_RESTRICT out,
                  size_t stride) {
  const DI di;
  const CodeSource<kBits> source(codes, depth, next);
  const auto lift = hn::Set(DF(), static_cast<float>(kLift));
  for (size_t column = 0; column * kBlockWidth < width; ++column) {
    const bool narrow = (column + 1) * kBlockWidth > width;  // halves are k, see src/bits/blocks.h
    const size_t per_block = narrow ? 2 * kBlockDepth : kBlockDepth;
    const size_t half_at = narrow ? kBlockDepth * stride : 16;
    for (size_t part = 0; part < kBlockRowBytes / hn::Lanes(D8()); ++part) {
      for (size_t m = 0; m < depth / per_block; ++m) {
        if (part == 0 && source.prefetches()) source.Prefetch(column, m);
        const auto store = [&](size_t k, size_t half, hn::Vec<D32> v) HWY_ATTR {
          const auto value = hn::ConvertTo(DF(), hn::BitCast(di, hn::And(v, hn::Set(D32(), 0xffu))));
          float* to = out + (m * per_block + k) * stride + column * kBlockWidth + half * half_at + part * hn::Lanes(di);
          hn::StoreU(hn::Sub(value, lift), DF(), to);
        };
        ForEachStep([&](auto step) HWY_ATTR {
          const StepLevels levels = source.template Levels<step>(column, part, m);
          for (size_t half = 0; half < 2; ++half) {
            const auto bytes = hn::BitCast(D32(), levels.half[half]);
            store(step, half, bytes);
            store(step + 4, half, hn::ShiftRight<8>(bytes));
            store(step + 8, half, hn::ShiftRight<16>(bytes));
            store(step + 12, half, hn::ShiftRight<24>(bytes));
          }
        });
      }
    }
  }
}

// Calls f(std::integral_constant<int, bits>).
template <class F>
HWY_INLINE void WithBits(int bits, F&& f) {
  ForEachLloydMaxBits([&](auto width) {
    if (width == bits) f(width);
  });
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
    std::memcpy(out, in, n * sizeof(float));
    return;
  }
  const uint16_t* half = reinterpret_cast<const uint16_t*>(in);
  for (size_t i = 0; i < n; ++i) out[i] = BF16ToF32(half[i]);
}

// Four rows of d floats -> column t, t + 1, .. of a tile [d][stride].
HWY_INLINE void TransposeFour(const float* HWY_RESTRICT rows, size_t d, float* HWY_RESTRICT tile, size_t stride) {
  const hn::FixedTag<float, 4> df;
  const hn::FixedTag<double, 2> dd;
  for (size_t c = 0; c + 4 <= d; c += 4) {
    const auto r0 = hn::LoadU(df, rows + c), r1 = hn::LoadU(df, rows + d + c);
    const auto r2 = hn::LoadU(df, rows + 2 * d + c), r3 = hn::LoadU(df, rows + 3 * d + c);
    const auto a = hn::BitCast(dd, hn::InterleaveLower(df, r0, r1)),
               b = hn::BitCast(dd, hn::InterleaveLower(df, r2, r3));
    const auto e = hn::BitCast(dd, hn::InterleaveUpper(df, r0, r1)),
               f = hn::BitCast(dd, hn::InterleaveUpper(df, r2, r3));
    hn::StoreU(hn::BitCast(df, hn::InterleaveLower(dd, a, b)), df, tile + c * stride);
    hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(dd, a, b)), df, tile + (c + 1) * stride);
    hn::StoreU(hn::BitCast(df, hn::InterleaveLower(dd, e, f)), df, tile + (c + 2) * stride);
    hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(dd, e, f)), df, tile + (c + 3) * stride);
  }
}

// The K part of a raw unit -> tile [d][page_tokens].
inline void LoadRawKTile(const SideLayout& side, const uint8_t* unit, float* tile) {
  WidenRaw(side.family, unit + side.codes_offset, side.depth() * side.width(), tile);
}

// Tokens [begin, end) of the V part of a raw unit -> rows of the tile.
inline void LoadRawVTile(const SideLayout& side, const uint8_t* unit, size_t begin, size_t end, float* tile,
                         size_t stride) {
  const uint8_t* codes = unit + side.codes_offset + begin * side.row_bytes();
  for (size_t t = begin; t < end; ++t, codes += side.row_bytes()) {
    WidenRaw(side.family, codes, static_cast<size_t>(side.d), tile + t * stride);
  }
}

// A page of token or page records -> tile [d][page_tokens]. rows: [4, d] scratch.
inline void LoadRecordsKTile(const SideLayout& side, const uint8_t* unit, float* rows, float* tile) {
  const size_t d = static_cast<size_t>(side.d), tokens = static_cast<size_t>(side.page_tokens);
  for (size_t t = 0; t < tokens; t += 4) {
    DecodeRecordsSimd(side.family, Kv::kK, side.record, unit + side.codes_offset, t, t + 4, rows);
    TransposeFour(rows, d, tile + t, tokens);
  }
}

// Tokens [begin, end) -> rows of the tile.
inline void LoadRecordsVTile(const SideLayout& side, const uint8_t* unit, size_t begin, size_t end, float* tile,
                             size_t stride) {
  for (size_t t = begin; t < end; ++t) {
    DecodeRecordsSimd(side.family, Kv::kV, side.record, unit + side.codes_offset, t, t + 1, tile + t * stride);
  }
}

// mean=page: a tile of levels or decoded records becomes one of values, R times the page's mean included.
inline void AddPageMean(const SideLayout& side, const RotationOp& rotation, const uint8_t* unit, const AttendScratch& s,
                        float* tile, size_t stride) {
  float* mean = s.page_mean;
  float* scales = s.row;  // [page_tokens]
  ReadPageMean(side, unit, mean);
  rotation.Apply(mean, mean + side.d);
  const uint16_t* stored = reinterpret_cast<const uint16_t*>(unit + side.scales_offset);
  const size_t tokens = static_cast<size_t>(side.page_tokens);
  for (size_t t = 0; t < tokens; ++t) scales[t] = side.storage == Storage::kCodes ? BF16ToF32(stored[t]) : 1.0f;
  for (size_t k = 0; k < side.depth(); ++k) {
    float* row = tile + k * stride;
    for (size_t n = 0; n < side.width(); ++n) {
      const size_t c = side.token_major ? n : k, t = side.token_major ? k : n;
      row[n] = row[n] * scales[t] + mean[c];
    }
  }
}

// bf16 -> fp32; the largest. next: the unit that follows, or null.
inline float WidenScales(const SideLayout& side, const uint8_t* unit, const uint8_t* next, float* out) {
  const DF d;
  const hn::Rebind<uint16_t, DF> d16;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(unit + side.scales_offset);
  for (size_t i = 0; next != nullptr && i < side.scales_bytes(); i += kBlockRowBytes) {
    hwy::Prefetch(next + side.scales_offset + i);
  }
  auto largest = hn::Zero(d);
  for (size_t t = 0; t < static_cast<size_t>(side.page_tokens); t += hn::Lanes(d)) {
    const auto bits = hn::PromoteTo(hn::RebindToUnsigned<DF>(), hn::LoadU(d16, scales + t));
    const auto value = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    largest = hn::Max(largest, value);
    hn::StoreU(value, d, out + t);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// What scores or weights are multiplied by: the scales of codes, 1 where tiles hold values.
inline float LoadScales(const SideLayout& side, bool latent, const uint8_t* unit, const uint8_t* next, float* out) {
  if (side.storage == Storage::kCodes && !side.page_mean && !latent) return WidenScales(side, unit, next, out);
  std::fill(out, out + side.page_tokens, 1.0f);
  return 1.0f;
}

// A packed side's codes -> tile [depth][stride] of levels.
inline void LoadLevels(const SideLayout& side, const uint8_t* codes, const uint8_t* next, float* tile, size_t stride) {
  WithBits(side.bits,
           [&](auto bits) HWY_ATTR { DecodeFloats<bits>(codes, side.depth(), side.width(), next, tile, stride); });
}

// A latent layer's page -> tile [head_dim_k][page_tokens] of values: latents in rotated space, rotary channels as they
// are. scales: [page_tokens] scratch. Raw layers: K's rows.
inline void LoadLatentTile(const PageLayout& layout, const uint8_t* unit, float* scales, float* tile) {
  const DF df;
  const SideLayout& k = layout.k;
  if (k.raw()) return LoadRawKTile(k, unit, tile);
  const size_t tokens = static_cast<size_t>(layout.page_tokens), d = static_cast<size_t>(k.d);
  LoadLevels(k, unit + k.codes_offset, nullptr, tile, tokens);
  WidenScales(k, unit, nullptr, scales);
  for (size_t i = 0; i < d * tokens; i += hn::Lanes(df)) {
    hn::StoreU(hn::Mul(hn::LoadU(df, tile + i), hn::LoadU(df, scales + i % tokens)), df, tile + i);
  }
  WidenF16(reinterpret_cast<const uint16_t*>(unit + layout.rotary_offset), static_cast<size_t>(layout.rotary) * tokens,
           tile + d * tokens);
}

// The first n rows of a tile [..][tokens] -> [tokens][stride].
inline void TransposeTile(const float* tile, size_t n, size_t tokens, float* out, size_t stride) {
  size_t c = 0;
  for (; c + 4 <= n; c += 4) TransposeFour(tile + c * tokens, tokens, out + c, stride);
  for (; c < n; ++c) {
    for (size_t t = 0; t < tokens; ++t) out[t * stride + c] = tile[c * tokens + t];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
