// SPDX-License-Identifier: Apache-2.0
// The sum over channels whose order is the same everywhere (docs/numerics.md), over Lanes (src/base/lanes.h). No
// include guard: compiled once per SIMD target, into the namespace that the includer names in TERSEKV_INL_NAMESPACE.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// Sum of f(c * Count()) over d channels: 32 running sums in channel order, then an xor tree of 16, 8, 4, 2, 1.
// sums: [32] lane groups of scratch.
template <class L, class F>
typename L::F TreeSum(L lanes, int d, float* sums, F&& f) {
  const size_t n = lanes.Count();
  for (int l = 0; l < 32; ++l) lanes.Store(lanes.Set(0.0f), sums + static_cast<size_t>(l) * n);
  for (int block = 0; block < d; block += 32) {
    const int count = d - block < 32 ? d - block : 32;
    for (int l = 0; l < count; ++l) {
      float* sum = sums + static_cast<size_t>(l) * n;
      lanes.Store(lanes.Add(lanes.Load(sum), f(static_cast<size_t>(block + l) * n)), sum);
    }
  }
  for (int half = 16; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) {
      float* sum = sums + static_cast<size_t>(l) * n;
      lanes.Store(lanes.Add(lanes.Load(sum), lanes.Load(sum + static_cast<size_t>(half) * n)), sum);
    }
  }
  return lanes.Load(sums);
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
