// SPDX-License-Identifier: Apache-2.0
// Rows of queries made ready: scaled, checked, quantised. Per-target include guard.

#if defined(TERSEKV_CPU_QUERY_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_QUERY_ROWS_INL_H_
#undef TERSEKV_CPU_QUERY_ROWS_INL_H_
#else
#define TERSEKV_CPU_QUERY_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "src/cpu/factor_words-inl.h"
#include "src/cpu/levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// out = q * factor; 0, or NaN when a value is no finite number. n: any.
HWY_INLINE float ScaleRow(const float* q, size_t n, float factor, float* out) {
  const DF d;
  VF poison = hn::Zero(d);
  size_t c = 0;
  for (; c + hn::Lanes(d) <= n; c += hn::Lanes(d)) {
    const VF scaled = hn::Mul(hn::LoadU(d, q + c), hn::Set(d, factor));
    hn::StoreU(scaled, d, out + c);
    poison = hn::Add(poison, hn::Mul(scaled, hn::Zero(d)));
  }
  float result = hn::GetLane(hn::SumOfLanes(d, poison));
  for (; c < n; ++c) {
    out[c] = q[c] * factor;
    result += out[c] * 0.0f;
  }
  return result;
}

// out = q * scale (null: 1); the product <q, mean> (null: 0). n: a multiple of 16.
HWY_INLINE float ScaleChannels(const float* q, size_t n, const float* mean, const float* scale, float* out) {
  const DF d;
  VF dot = hn::Zero(d);
  for (size_t c = 0; c < n; c += hn::Lanes(d)) {
    const VF x = hn::LoadU(d, q + c);
    if (mean != nullptr) dot = hn::MulAdd(x, hn::LoadU(d, mean + c), dot);
    hn::StoreU(scale != nullptr ? hn::Mul(x, hn::LoadU(d, scale + c)) : x, d, out + c);
  }
  return hn::GetLane(hn::SumOfLanes(d, dot));
}

// The largest |q|. n: a multiple of 16.
HWY_INLINE float LargestMagnitude(const float* q, size_t n) {
  const DF d;
  VF largest = hn::Zero(d);
  for (size_t c = 0; c < n; c += hn::Lanes(d)) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, q + c)));
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// q * factor, rounded to even, as words of integer_product-inl.h (8 bits: kQuads, else 16); their sum. n: a multiple of
// 16; no product beyond what its word holds.
template <bool kQuads>
HWY_INLINE int32_t QuantiseRow(const float* q, size_t n, float factor, uint32_t* words) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const hn::RebindToUnsigned<DF> du;
  constexpr size_t kVectors = 16 / hn::MaxLanes(DF());
  auto sum = hn::Zero(di);
  for (size_t c = 0; c < n; c += 16, words += kQuads ? 4 : 8) {
    hn::Vec<decltype(du)> w[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
      const auto x = hn::NearestInt(hn::Mul(hn::LoadU(d, q + c + i * hn::Lanes(d)), hn::Set(d, factor)));
      sum = hn::Add(sum, x);
      w[i] = hn::BitCast(du, x);
    }
    if constexpr (kQuads) {
      StoreQuads(w, words);
    } else {
      StorePairs(w, words);
    }
  }
  return hn::GetLane(hn::SumOfLanes(di, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
