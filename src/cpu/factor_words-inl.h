// SPDX-License-Identifier: Apache-2.0
// Small integers -> the words that integer_product-inl.h multiplies with. Per-target include guard.

#if defined(TERSEKV_CPU_FACTOR_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_FACTOR_WORDS_INL_H_
#undef TERSEKV_CPU_FACTOR_WORDS_INL_H_
#else
#define TERSEKV_CPU_FACTOR_WORDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "src/cpu/levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE V ToPair(D d, V low, V high) {
  return hn::Or(hn::And(low, hn::Set(d, 0xffffu)), hn::ShiftLeft<16>(high));
}

// 16 numbers, each in the low 16 bits of a lane (bits above are ignored) -> 8 words: number j and j + 8.
template <class V, size_t kVectors>
HWY_INLINE void StorePairs(const V (&w)[kVectors], uint32_t* words) {
  const hn::RebindToUnsigned<DF> du;
  if constexpr (kVectors == 1) {
    const hn::Half<decltype(du)> half;
    hn::StoreU(ToPair(half, hn::LowerHalf(half, w[0]), hn::UpperHalf(half, w[0])), half, words);
  } else {
    constexpr size_t kApart = kVectors / 2;
    for (size_t i = 0; i < kApart; ++i) {
      hn::StoreU(ToPair(du, w[i], w[i + kApart]), du, words + i * hn::Lanes(du));
    }
  }
}

// 16 numbers, each in the low 8 bits of a lane -> 4 words: numbers i, i + 4, i + 8, i + 12.
template <class V, size_t kVectors>
HWY_INLINE void StoreQuads(const V (&w)[kVectors], uint32_t* words) {
  const hn::RebindToUnsigned<DF> du;
  const hn::FixedTag<uint32_t, 4> d4;
  HWY_ALIGN uint32_t flat[16];
  for (size_t i = 0; i < kVectors; ++i) {
    hn::Store(hn::And(w[i], hn::Set(du, 0xffu)), du, flat + i * hn::Lanes(du));
  }
  const auto low = hn::Or(hn::Load(d4, flat), hn::ShiftLeft<8>(hn::Load(d4, flat + 4)));
  const auto high = hn::Or(hn::ShiftLeft<16>(hn::Load(d4, flat + 8)), hn::ShiftLeft<24>(hn::Load(d4, flat + 12)));
  hn::StoreU(hn::Or(low, high), d4, words);
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
