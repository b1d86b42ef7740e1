// SPDX-License-Identifier: Apache-2.0
// Row -> rotated row, over Lanes (src/base/lanes.h). No include guard: compiled once per SIMD target, into the
// namespace that the includer names in TERSEKV_INL_NAMESPACE.
//
// The Hadamard transform is unnormalised and add-only, so that every machine gets the same bits.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// y: [d] lane groups; group c starts at y + c * Count(). Radix-2 stages of stride 1, 2, 4, ...: (a + b, a - b).
template <class L>
void Hadamard(L lanes, float* y, int d) {
  const size_t n = lanes.Count();
  for (int stride = 1; stride < d; stride *= 2) {
    for (int base = 0; base < d; base += 2 * stride) {
      for (int c = base; c < base + stride; ++c) {
        float* pa = y + static_cast<size_t>(c) * n;
        float* pb = y + static_cast<size_t>(c + stride) * n;
        const auto a = lanes.Load(pa);
        const auto b = lanes.Load(pb);
        lanes.Store(lanes.Add(a, b), pa);
        lanes.Store(lanes.Sub(a, b), pb);
      }
    }
  }
}

// y: [d] lane groups, becomes sqrt(d) R y. scratch: as large as y (haar only).
template <class L>
void RotateForward(L lanes, const RotationOp& op, float* y, float* scratch) {
  const size_t n = lanes.Count();
  const int d = op.d();
  if (op.kind() == RotationKind::kHadamard) {
    for (int c = 0; c < d; ++c) {
      float* p = y + static_cast<size_t>(c) * n;
      lanes.Store(lanes.Mul(lanes.Load(p), lanes.Set(op.signs()[c])), p);
    }
    Hadamard(lanes, y, d);
    return;
  }
  if (op.kind() == RotationKind::kHaar) {
    for (int r = 0; r < d; ++r) {  // sequential over columns: one order for every machine
      const float* row = op.haar() + static_cast<size_t>(r) * static_cast<size_t>(d);
      auto sum = lanes.Mul(lanes.Set(row[0]), lanes.Load(y));
      for (int c = 1; c < d; ++c) {
        sum = lanes.Add(sum, lanes.Mul(lanes.Set(row[c]), lanes.Load(y + static_cast<size_t>(c) * n)));
      }
      lanes.Store(sum, scratch + static_cast<size_t>(r) * n);
    }
    for (size_t i = 0; i < static_cast<size_t>(d) * n; i += n) {
      lanes.Store(lanes.Mul(lanes.Load(scratch + i), lanes.Set(op.sqrt_d())), y + i);
    }
    return;
  }
  for (size_t i = 0; i < static_cast<size_t>(d) * n; i += n) {
    lanes.Store(lanes.Mul(lanes.Load(y + i), lanes.Set(op.sqrt_d())), y + i);
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
