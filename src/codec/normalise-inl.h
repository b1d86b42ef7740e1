// SPDX-License-Identifier: Apache-2.0
// What is subtracted from a row and what it is divided by before it is rotated, over Lanes (src/base/lanes.h). No
// include guard: compiled once per SIMD target and wherever rows are measured, into the namespace that the includer
// names in TERSEKV_INL_NAMESPACE; the includer has included head_codec.h.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// x: [d] lane groups, minus mean, over scale, minus the page's mean.
template <class L>
void Normalise(L lanes, const HeadCodec& codec, float* x) {
  if (codec.mean == nullptr && codec.inv_scale == nullptr && codec.page_mean == nullptr) return;
  for (int c = 0; c < codec.d; ++c) {
    float* p = x + static_cast<size_t>(c) * lanes.Count();
    auto v = lanes.Load(p);
    if (codec.mean != nullptr) v = lanes.Sub(v, lanes.Set(codec.mean[c]));
    if (codec.inv_scale != nullptr) v = lanes.Mul(v, lanes.Set(codec.inv_scale[c]));
    if (codec.page_mean != nullptr) v = lanes.Sub(v, lanes.Set(codec.page_mean[c]));
    lanes.Store(v, p);
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
