// SPDX-License-Identifier: Apache-2.0
// Rotated row -> codes and levels, over Lanes (src/base/lanes.h). No include guard: compiled once per SIMD target, into
// the namespace that the includer names in TERSEKV_INL_NAMESPACE.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// y: [d] lane groups, replaced by the levels; code: [d] lane groups, the codes as floats. s: the row's norm.
// peak: the grid's largest |y|, for StoredScale. s = 0: codes and levels 0.
template <class L>
void LloydMaxQuantise(L lanes, const LevelTable& t, float* y, int d, typename L::F s, float* code, float* peak) {
  const size_t n = lanes.Count();
  const auto zero = lanes.Set(0.0f);
  const auto nonzero = lanes.Greater(s, zero);
  if (t.grid != 0) {
    auto amax = zero;
    for (int c = 0; c < d; ++c) amax = lanes.Max(amax, lanes.Abs(lanes.Load(y + static_cast<size_t>(c) * n)));
    const auto grid = lanes.Set(static_cast<float>(t.grid));
    const auto ratio = lanes.Select(nonzero, lanes.Div(grid, lanes.Select(nonzero, amax, grid)), zero);
    for (int c = 0; c < d; ++c) {
      const size_t at = static_cast<size_t>(c) * n;
      const auto level = lanes.RoundEven(lanes.Mul(lanes.Load(y + at), ratio));
      lanes.Store(lanes.Select(nonzero, level, zero), y + at);
      lanes.Store(lanes.Select(nonzero, lanes.Add(level, grid), zero), code + at);
    }
    lanes.Store(amax, peak);
    return;
  }
  const auto one = lanes.Set(1.0f);
  float bound[64 * 64], step[64];  // as many as LevelTable has thresholds; Count() <= 64 on every target
  for (int k = 0; k + 1 < t.count; ++k) {
    const size_t i = static_cast<size_t>(k);
    lanes.Store(lanes.Mul(lanes.Set(t.threshold[i]), s), bound + i * n);
    step[i] = static_cast<float>(t.level[i + 1] - t.level[i]);
  }
  for (int c = 0; c < d; ++c) {
    const size_t at = static_cast<size_t>(c) * n;
    const auto value = lanes.Load(y + at);
    auto index = zero;
    auto level = lanes.Set(static_cast<float>(t.level[0]));
    for (int k = 0; k + 1 < t.count; ++k) {  // strict: ties go down
      const size_t i = static_cast<size_t>(k);
      const auto passed = lanes.Greater(value, lanes.Load(bound + i * n));
      index = lanes.Add(index, lanes.Select(passed, one, zero));
      level = lanes.Add(level, lanes.Select(passed, lanes.Set(step[i]), zero));
    }
    lanes.Store(lanes.Select(nonzero, level, zero), y + at);
    lanes.Store(lanes.Select(nonzero, index, zero), code + at);
  }
  lanes.Store(zero, peak);
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
