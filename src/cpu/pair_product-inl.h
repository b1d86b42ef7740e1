// SPDX-License-Identifier: Apache-2.0
// The product of multiply-inl.h in integers, straight from codes: sums of 16-bit x (quantised queries or weights) times
// levels, exact in 32 bits. Lanes are outputs, so there are no horizontal sums; every row sees the same integers
// however many rows come along. Per-target include guard.

#if defined(TERSEKV_CPU_PAIR_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_PAIR_PRODUCT_INL_H_
#undef TERSEKV_CPU_PAIR_PRODUCT_INL_H_
#else
#define TERSEKV_CPU_PAIR_PRODUCT_INL_H_
#endif

#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "src/cpu/attend.h"
#include "src/cpu/levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::RebindToSigned<D32>;
using VI = hn::Vec<DI>;

// sum + a[2l] * b[2l] + a[2l + 1] * b[2l + 1], 16-bit factors, wrapping.
HWY_INLINE VI AddPairs(VI sum, V16 a, V16 b) {
  const DI d;
  const hn::RebindToSigned<D16> d16;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL && HWY_MAJOR == 1 && HWY_MINOR == 0
  // Highway 1.0 multiplies and adds in two instructions, and its target lacks the one that does both for intrinsics.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#elif HWY_ARCH_X86
  VI unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const auto low = [&](V16 v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(d, v))); };
  const auto high = [&](V16 v) HWY_ATTR { return hn::ShiftRight<16>(hn::BitCast(d, v)); };
  return hn::Add(sum, hn::Add(hn::Mul(low(a), low(b)), hn::Mul(high(a), high(b))));
#endif
}

// Levels straight from a page.
template <int kBits>
class CodeSource {
 public:
  // next: the same codes of the page that is read after this one, or null.
  CodeSource(const uint8_t* codes, size_t depth, const uint8_t* next)
      : codes_(codes), next_(next), blocks_(depth / kBlockDepth) {}

  template <int kStep>
  HWY_INLINE StepLevels Levels(size_t column, size_t part, size_t m) const {
    return reader_.template Read<kStep>(codes_ + (column * blocks_ + m) * BlockBytes(kBits), part);
  }
  template <int kStep>
  HWY_INLINE StepPairs Pairs(size_t column, size_t part, size_t m) const {
    return ToPairs(Levels<kStep>(column, part, m));
  }
  // One block's bytes ahead: each line of the next page is asked for once.
  HWY_INLINE void Prefetch(size_t column, size_t m) const {
    const uint8_t* at = next_ + (column * blocks_ + m) * BlockBytes(kBits);
    for (size_t r = 0; r < kBits; ++r) hwy::Prefetch(at + r * kBlockRowBytes);
  }
  bool prefetches() const { return next_ != nullptr; }

 private:
  const BlockReader<kBits> reader_;
  const uint8_t* codes_;
  const uint8_t* next_;
  size_t blocks_;
};

// Pairs that were decoded once for many rows.
class PairSource {
 public:
  PairSource(const uint16_t* tile, size_t depth) : tile_(tile), blocks_(depth / kBlockDepth) {}

  template <int kStep>
  HWY_INLINE StepPairs Pairs(size_t column, size_t part, size_t m) const {
    const size_t parts = kBlockRowBytes / hn::Lanes(D8()), lanes = hn::Lanes(D16());
    const uint16_t* at = tile_ + (((column * parts + part) * blocks_ + m) * 4 + kStep) * 4 * lanes;
    return {{hn::Load(D16(), at), hn::Load(D16(), at + lanes)},
            {hn::Load(D16(), at + 2 * lanes), hn::Load(D16(), at + 3 * lanes)}};
  }
  HWY_INLINE void Prefetch(size_t, size_t) const {}
  bool prefetches() const { return false; }

 private:
  const uint16_t* tile_;
  size_t blocks_;
};

// Calls f(std::integral_constant<int, step>) for the four steps of a block.
template <class F>
HWY_INLINE void ForEachStep(F&& f) {
  f(std::integral_constant<int, 0>());
  f(std::integral_constant<int, 1>());
  f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 3>());
}

// codes of depth x width -> what PairSource reads: [depth * width] values, aligned.
template <int kBits>
void DecodePairs(const uint8_t* codes, size_t depth, size_t width, const uint8_t* next, uint16_t* tile) {
  const CodeSource<kBits> source(codes, depth, next);
  for (size_t column = 0; column < width / kBlockWidth; ++column) {
    for (size_t part = 0; part < kBlockRowBytes / hn::Lanes(D8()); ++part) {
      for (size_t m = 0; m < depth / kBlockDepth; ++m) {
        if (part == 0 && source.prefetches()) source.Prefetch(column, m);
        ForEachStep([&](auto step) HWY_ATTR {
          const StepPairs pairs = source.template Pairs<step>(column, part, m);
          for (const V16 v : {pairs.low[0], pairs.low[1], pairs.high[0], pairs.high[1]}) {
            hn::Store(v, D16(), tile);
            tile += hn::Lanes(D16());
          }
        });
      }
    }
  }
}

// Factors of each row: pairs[r * kRowStride + 8 * m + j] holds x[16 m + j] (low half) and x[16 m + j + 8]. The distance
// of rows is a constant, so that one pointer serves all of them.
struct PairRows {
  const uint32_t* pairs;
  const int32_t* start;  // [rows * start_stride] -kLift * sum of x: what the sums begin with
  size_t start_stride;
  size_t m_begin, m_end;  // blocks of k that count; x is 0 elsewhere
};

// out[r][n] = sum, or out[r][n] += factor[r * factor_stride] * sum when there are factors.
struct SumsOut {
  float* out;
  size_t stride;
  const float* factor = nullptr;
  size_t factor_stride = 0;
};

template <int kRows, int kColumns, class Source>
HWY_INLINE void PairBlock(const Source& source, const PairRows& x, const SumsOut& to, size_t row, size_t column,
                          size_t part) {
  const DI d;
  const hn::RebindToFloat<DI> df;
  VI sum[kRows][kColumns][2];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c][0] = sum[r][c][1] = hn::Set(d, x.start[(row + static_cast<size_t>(r)) * x.start_stride]);
    }
  }
  const bool prefetch = row == 0 && part == 0 && source.prefetches();
  const uint32_t* HWY_RESTRICT pairs = x.pairs + row * kRowStride + kPairStride * x.m_begin;
  for (size_t m = x.m_begin; m < x.m_end; ++m, pairs += kPairStride) {
    for (int c = 0; c < kColumns && prefetch; ++c) source.Prefetch(column + static_cast<size_t>(c), m);
    ForEachStep([&](auto step) HWY_ATTR {
      StepPairs levels[kColumns];
      for (int c = 0; c < kColumns; ++c) {
        levels[c] = source.template Pairs<step>(column + static_cast<size_t>(c), part, m);
      }
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const uint32_t* at = pairs + static_cast<size_t>(r) * kRowStride + step;
        const V16 low = hn::BitCast(D16(), hn::Set(D32(), at[0])), high = hn::BitCast(D16(), hn::Set(D32(), at[4]));
        for (int c = 0; c < kColumns; ++c) {
          for (int half = 0; half < 2; ++half) {
            sum[r][c][half] = AddPairs(sum[r][c][half], levels[c].low[half], low);
            sum[r][c][half] = AddPairs(sum[r][c][half], levels[c].high[half], high);
          }
        }
      }
    });
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kColumns; ++c) {
      for (size_t half = 0; half < 2; ++half) {
        float* out = to.out + (row + r) * to.stride + (column + c) * kBlockWidth + half * 16 + part * hn::Lanes(d);
        auto value = hn::ConvertTo(df, sum[r][c][half]);
        if (to.factor != nullptr) {
          value = hn::MulAdd(hn::Set(df, to.factor[(row + r) * to.factor_stride]), value, hn::LoadU(df, out));
        }
        hn::StoreU(value, df, out);
      }
    }
  }
}

template <int kColumns, class Source>
HWY_INLINE void PairColumns(const Source& source, const PairRows& x, const SumsOut& to, size_t rows, size_t column,
                            size_t part) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) PairBlock<4, kColumns>(source, x, to, r, column, part);
  if (rows - r == 3) PairBlock<3, kColumns>(source, x, to, r, column, part);
  if (rows - r == 2) PairBlock<2, kColumns>(source, x, to, r, column, part);
  if (rows - r == 1) PairBlock<1, kColumns>(source, x, to, r, column, part);
}

// width: a multiple of kBlockWidth.
template <class Source>
void PairProduct(const Source& source, const PairRows& x, size_t rows, size_t width, const SumsOut& to) {
  const size_t columns = width / kBlockWidth;
  for (size_t part = 0; part < kBlockRowBytes / hn::Lanes(D8()); ++part) {
    size_t column = 0;
    if constexpr (HWY_TARGET <= HWY_AVX3) {  // 32 registers
      for (; column + 2 <= columns; column += 2) PairColumns<2>(source, x, to, rows, column, part);
    }
    for (; column < columns; ++column) PairColumns<1>(source, x, to, rows, column, part);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
