// SPDX-License-Identifier: Apache-2.0
// Rows -> codes and scales, over Lanes (src/base/lanes.h), in the order of operations that makes bytes identical
// everywhere (docs/numerics.md). No include guard: compiled once per SIMD target, into the namespace that the includer
// names in TERSEKV_INL_NAMESPACE; the includer has included half.h, head_codec.h and lloyd_max.h.

#include "src/codec/lloyd_max-inl.h"
#include "src/codec/normalise-inl.h"
#include "src/codec/tree_sum-inl.h"
#include "src/transform/rotate-inl.h"

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// Encodes one block of Count() rows. x: [d] lane groups (channel-major), destroyed. codes: [Count(), d]; scales:
// [Count()] bf16; of the first `rows` only. scratch: EncodeScratchFloats(d, Count()). False: a row is not finite or its
// norm overflows, outputs are then garbage.
template <class L>
bool EncodeLanes(L lanes, const HeadCodec& codec, float* x, uint8_t* codes, uint16_t* scales, float* scratch,
                 size_t rows = 1) {
  const size_t n = lanes.Count();
  const int d = codec.d;
  float* code = scratch;
  float* spare = code + static_cast<size_t>(d) * n;
  float* rotated = spare + static_cast<size_t>(d) * n;
  float* sums = rotated;  // [32] groups; the rotated row itself lives in x
  Normalise(lanes, codec, x);
  float s2[64], s[64], p[64], n2[64], peak[64];  // Count() <= 64 on every target
  const auto square_sum = TreeSum(lanes, d, sums, [&](size_t at) {
    const auto v = lanes.Load(x + at);
    return lanes.Mul(v, v);
  });
  lanes.Store(square_sum, s2);
  for (size_t i = 0; i < n; ++i) {
    if (!(s2[i] <= 0x1.fffffep127f)) return false;  // inf or nan in the row, or a norm that overflows
  }
  const auto norm = lanes.Sqrt(square_sum);
  lanes.Store(norm, s);
  RotateForward(lanes, *codec.rotation, x, spare);
  for (int c = 0; c < d; ++c) {  // spare = y, x becomes the levels
    const size_t at = static_cast<size_t>(c) * n;
    lanes.Store(lanes.Load(x + at), spare + at);
  }
  const LevelTable& table = LevelsOf(codec.bits);
  LloydMaxQuantise(lanes, table, x, d, norm, code, peak);
  lanes.Store(TreeSum(lanes, d, sums, [&](size_t at) { return lanes.Mul(lanes.Load(spare + at), lanes.Load(x + at)); }),
              p);
  auto levels2 = lanes.Set(0.0f);  // exact: an integer below 2^24
  for (int c = 0; c < d; ++c) {
    const auto level = lanes.Load(x + static_cast<size_t>(c) * n);
    levels2 = lanes.Add(levels2, lanes.Mul(level, level));
  }
  lanes.Store(levels2, n2);
  for (size_t i = 0; i < rows; ++i) {
    float g = LloydMaxScale(table, codec.norm, s2[i], s[i], codec.sqrt_d, p[i], n2[i], peak[i]);
    if (!(g < 0x1.fep127f)) g = 0x1.fep127f;  // saturates at bf16's largest
    scales[i] = F32ToBF16(g);
    for (int c = 0; c < d; ++c) {
      codes[i * static_cast<size_t>(d) + static_cast<size_t>(c)] =
          static_cast<uint8_t>(code[static_cast<size_t>(c) * n + i]);
    }
  }
  return true;
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
