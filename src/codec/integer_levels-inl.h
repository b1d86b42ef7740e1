// SPDX-License-Identifier: Apache-2.0
// The stored scale of integer_levels.h. No include guard: compiled once per SIMD target and plainly, into the namespace
// that the includer names in TERSEKV_INL_NAMESPACE; the includer has included lanes.h, integer_levels.h and, into the
// same namespace, tree_sum-inl.h.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// The bf16 scale of a row, by docs/numerics.md, steps 5 and 6. `table` gives the step; levels: [d].
inline uint16_t LevelScale(const LevelTable& table, const RecordShape& shape, const RecordRow& row,
                           const int8_t* levels) {
  float sums[32];
  int32_t n2 = 0;
  const float p =
      TreeSum(ScalarLanes(), shape.d, sums, [&](size_t c) { return row.y[c] * static_cast<float>(levels[c]); });
  for (int c = 0; c < shape.d; ++c) n2 += levels[c] * levels[c];
  return StoredScale(LloydMaxScale(table, shape.norm, row.s2, row.s, row.sqrt_d, p, static_cast<float>(n2), 0.0f));
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
