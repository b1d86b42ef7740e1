// SPDX-License-Identifier: Apache-2.0
// Lanes (src/base/lanes.h) over Highway. Per-target include guard.

#if defined(TERSEKV_CPU_HWY_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_HWY_LANES_INL_H_
#undef TERSEKV_CPU_HWY_LANES_INL_H_
#else
#define TERSEKV_CPU_HWY_LANES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {

struct HwyLanes {
  using D = hwy::HWY_NAMESPACE::CappedTag<float, 16>;
  using F = hwy::HWY_NAMESPACE::Vec<D>;
  using M = hwy::HWY_NAMESPACE::Mask<D>;
  static HWY_INLINE size_t Count() { return hwy::HWY_NAMESPACE::Lanes(D()); }
  static HWY_INLINE F Load(const float* p) { return hwy::HWY_NAMESPACE::LoadU(D(), p); }
  static HWY_INLINE void Store(F v, float* p) { hwy::HWY_NAMESPACE::StoreU(v, D(), p); }
  static HWY_INLINE F Set(float v) { return hwy::HWY_NAMESPACE::Set(D(), v); }
  static HWY_INLINE F Add(F a, F b) { return hwy::HWY_NAMESPACE::Add(a, b); }
  static HWY_INLINE F Sub(F a, F b) { return hwy::HWY_NAMESPACE::Sub(a, b); }
  static HWY_INLINE F Mul(F a, F b) { return hwy::HWY_NAMESPACE::Mul(a, b); }
  static HWY_INLINE F Div(F a, F b) { return hwy::HWY_NAMESPACE::Div(a, b); }
  static HWY_INLINE F Sqrt(F a) { return hwy::HWY_NAMESPACE::Sqrt(a); }
  static HWY_INLINE F Abs(F a) { return hwy::HWY_NAMESPACE::Abs(a); }
  static HWY_INLINE F Max(F a, F b) { return hwy::HWY_NAMESPACE::Max(a, b); }
  static HWY_INLINE F RoundEven(F a) { return hwy::HWY_NAMESPACE::Round(a); }
  static HWY_INLINE M Greater(F a, F b) { return hwy::HWY_NAMESPACE::Gt(a, b); }
  static HWY_INLINE F Select(M m, F yes, F no) { return hwy::HWY_NAMESPACE::IfThenElse(m, yes, no); }
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
