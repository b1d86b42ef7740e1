// SPDX-License-Identifier: Apache-2.0
// Row -> rotated row, over Lanes (src/base/lanes.h). No include guard: compiled once per SIMD target, into the
// namespace that the includer names in TERSEKV_INL_NAMESPACE; the includer has included <type_traits>, lanes.h and
// rotation.h.
//
// The Hadamard transform is unnormalised and add-only, so that every machine gets the same bits.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// Four adjacent channels of one row as lanes.
struct AdjacentLanes {
  using F = float __attribute__((vector_size(16)));
  static constexpr size_t Count() { return 4; }
  static F Load(const float* p) {
    F v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static void Store(F v, float* p) { __builtin_memcpy(p, &v, sizeof(v)); }
  static F Set(float v) { return F{v, v, v, v}; }
  static F Add(F a, F b) { return a + b; }
  static F Sub(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
};

// The stages of stride 1 and 2 of one row, four channels at a time; a + -b is a - b to the bit.
inline void FirstTwoStages(float* y, int d) {
  using F = AdjacentLanes::F;
  for (float* p = y; p < y + d; p += 4) {
    F x = AdjacentLanes::Load(p);
    x = __builtin_shufflevector(x, x, 0, 0, 2, 2) + __builtin_shufflevector(x, x, 1, 1, 3, 3) * F{1, -1, 1, -1};
    x = __builtin_shufflevector(x, x, 0, 1, 0, 1) + __builtin_shufflevector(x, x, 2, 3, 2, 3) * F{1, 1, -1, -1};
    AdjacentLanes::Store(x, p);
  }
}

// The outer factor: p x p over groups [p, inner]. A row of Paley's matrix is summed in ascending column, one add at a
// time; a product with +1 or -1 is exact, so it is the same as adding and subtracting.
template <class L>
void PaleyStage(L lanes, float* y, int p, int inner, bool transposed) {
  const size_t n = lanes.Count();
  const size_t order = static_cast<size_t>(p), step = static_cast<size_t>(inner) * n;
  if constexpr (std::is_same_v<L, ScalarLanes>) {  // one row: columns of the inner factor side by side
    if (inner % 4 == 0) return PaleyStage(AdjacentLanes(), y, p, inner / 4, transposed);
  }
  const float* matrix = PaleyMatrix(p);
  const size_t down = transposed ? 1 : order, right = transposed ? order : 1;
  float column[kLargestPaleyOrder * 64];  // Count() <= 64 on every target
  for (size_t i = 0; i < step; i += n) {
    for (size_t c = 0; c < order; ++c) lanes.Store(lanes.Load(y + c * step + i), column + c * n);
    for (size_t r = 0; r < order; ++r) {
      const float* sign = matrix + r * down;
      auto sum = lanes.Mul(lanes.Set(sign[0]), lanes.Load(column));
      for (size_t c = 1; c < order; ++c) {
        sum = lanes.Add(sum, lanes.Mul(lanes.Set(sign[c * right]), lanes.Load(column + c * n)));
      }
      lanes.Store(sum, y + r * step + i);
    }
  }
}

// Radix-2 stages of stride 1, 2, 4, ... below inner: (a + b, a - b). y: [d] lane groups.
template <class L>
void RadixStages(L lanes, float* y, int d, int inner) {
  const size_t n = lanes.Count();
  for (int stride = 1; stride < inner; stride *= 2) {
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

// y: [d] lane groups; group c starts at y + c * Count(). H y, or H^T y. Inner factor first.
template <class L>
void Hadamard(L lanes, float* y, int d, bool transposed = false) {
  const int paley = PaleyOrder(d), inner = d / paley;
  bool adjacent = false;
  if constexpr (std::is_same_v<L, ScalarLanes>) adjacent = inner % 4 == 0;  // one row: its channels as lanes
  if (adjacent) {
    FirstTwoStages(y, d);
    RadixStages(AdjacentLanes(), y, d / 4, inner / 4);
  } else {
    RadixStages(lanes, y, d, inner);
  }
  if (paley != 1) PaleyStage(lanes, y, paley, inner, transposed);
}

// y: [d] lane groups, each channel times its factor.
template <class L>
void ScaleChannels(L lanes, float* y, int d, const float* factors) {
  const size_t n = lanes.Count();
  for (int c = 0; c < d; ++c) {
    float* p = y + static_cast<size_t>(c) * n;
    lanes.Store(lanes.Mul(lanes.Load(p), lanes.Set(factors[c])), p);
  }
}

// y: [d] lane groups, becomes sqrt(d) R y. scratch: as large as y (kHaar and kGaussian only).
template <class L>
void RotateForward(L lanes, const RotationOp& op, float* y, float* scratch) {
  const size_t n = lanes.Count();
  const int d = op.d();
  const size_t size = static_cast<size_t>(d) * n;
  switch (op.kind()) {
    case RotationKind::kHadamard:
    case RotationKind::kHadamard2:
      ScaleChannels(lanes, y, d, op.signs());
      Hadamard(lanes, y, d);
      if (op.kind() == RotationKind::kHadamard) return;
      ScaleChannels(lanes, y, d, op.second_signs());
      Hadamard(lanes, y, d);
      return;
    case RotationKind::kHaar:
      for (int r = 0; r < d; ++r) {  // sequential over columns: one order for every machine
        const float* row = op.matrix() + static_cast<size_t>(r) * static_cast<size_t>(d);
        auto sum = lanes.Mul(lanes.Set(row[0]), lanes.Load(y));
        for (int c = 1; c < d; ++c) {
          sum = lanes.Add(sum, lanes.Mul(lanes.Set(row[c]), lanes.Load(y + static_cast<size_t>(c) * n)));
        }
        lanes.Store(sum, scratch + static_cast<size_t>(r) * n);
      }
      for (size_t i = 0; i < size; i += n) {
        lanes.Store(lanes.Mul(lanes.Load(scratch + i), lanes.Set(op.sqrt_d())), y + i);
      }
      return;
    case RotationKind::kGaussian:  // the same order, column by column
      for (int c = 0; c < d; ++c) {
        const float* column = op.matrix() + static_cast<size_t>(c) * static_cast<size_t>(d);
        const auto value = lanes.Load(y + static_cast<size_t>(c) * n);
        for (int r = 0; r < d; ++r) {
          float* sum = scratch + static_cast<size_t>(r) * n;
          const auto product = lanes.Mul(lanes.Set(column[r]), value);
          lanes.Store(c == 0 ? product : lanes.Add(lanes.Load(sum), product), sum);
        }
      }
      for (size_t i = 0; i < size; i += n) lanes.Store(lanes.Load(scratch + i), y + i);
      return;
    case RotationKind::kNone:
      for (size_t i = 0; i < size; i += n) lanes.Store(lanes.Mul(lanes.Load(y + i), lanes.Set(op.sqrt_d())), y + i);
      return;
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
