// SPDX-License-Identifier: Apache-2.0
// The one product of attention in fp32: out[r][n] (+)= sum_k x[r][k] * tile[k][n]. Scores and outputs both are that
// (k = channels, n = tokens; then k = tokens, n = channels). Every row sees the same order of operations, however many
// rows come along. Per-target include guard.

#if defined(TERSEKV_CPU_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_MULTIPLY_INL_H_
#undef TERSEKV_CPU_MULTIPLY_INL_H_
#else
#define TERSEKV_CPU_MULTIPLY_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Product {
  const float* x;
  size_t x_stride;
  const float* tile;
  size_t tile_stride;
  size_t depth;  // k
  float* out;
  size_t out_stride;
  bool add;  // to what is there, or overwrite it
};

// kRows rows x kVectors vectors of columns, in registers.
template <size_t kRows, size_t kVectors>
HWY_INLINE void ProductBlock(const Product& p, size_t row, size_t column) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = p.add ? hn::LoadU(d, p.out + (row + r) * p.out_stride + column + v * lanes) : hn::Zero(d);
    }
  }
  const float* tile = p.tile + column;
  for (size_t k = 0; k < p.depth; ++k, tile += p.tile_stride) {
    hn::Vec<decltype(d)> t[kVectors];
    for (size_t v = 0; v < kVectors; ++v) t[v] = hn::LoadU(d, tile + v * lanes);
    for (size_t r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, p.x[(row + r) * p.x_stride + k]);
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, t[v], sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], d, p.out + (row + r) * p.out_stride + column + v * lanes);
    }
  }
}

// As many rows at once as keep the multipliers busy (8 sums or more) and fit 32 registers or 16.
template <size_t kVectors>
HWY_INLINE void ProductColumns(const Product& p, size_t rows, size_t column) {
  constexpr size_t kRows = (HWY_TARGET <= HWY_AVX3 ? 4 : 2) * (kVectors <= 2 ? 2 : 1);
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows) ProductBlock<kRows, kVectors>(p, r, column);
  for (; r < rows; ++r) ProductBlock<1, kVectors>(p, r, column);
}

// columns: a multiple of 16.
inline void Multiply(const Product& p, size_t rows, size_t columns) {
  const size_t lanes = hn::Lanes(hn::CappedTag<float, 16>());
  size_t c = 0;
  for (; c + 4 * lanes <= columns; c += 4 * lanes) ProductColumns<4>(p, rows, c);
  if (c + 3 * lanes == columns) return ProductColumns<3>(p, rows, c);
  if (c + 2 * lanes == columns) return ProductColumns<2>(p, rows, c);
  if (c < columns) ProductColumns<1>(p, rows, c);
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
