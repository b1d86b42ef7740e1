// SPDX-License-Identifier: Apache-2.0
// The product of multiply-inl.h in integers, straight from codes: sums of 16-bit x (quantised queries or weights) times
// levels, exact in 32 bits. Lanes are outputs, so there are no horizontal sums; every row sees the same integers
// however many rows come along. Per-target include guard.

#if defined(TERSEKV_CPU_INTEGER_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_INTEGER_PRODUCT_INL_H_
#undef TERSEKV_CPU_INTEGER_PRODUCT_INL_H_
#else
#define TERSEKV_CPU_INTEGER_PRODUCT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
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
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL && HWY_MAJOR == 1 && HWY_MINOR == 0
  // Highway 1.0 multiplies and adds in two instructions, and its target lacks the one that does both for intrinsics.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#elif HWY_ARCH_X86
  const DI d;
  const hn::RebindToSigned<D16> d16;
  VI unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const DI d;
  const auto low = [&](V16 v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(d, v))); };
  const auto high = [&](V16 v) HWY_ATTR { return hn::ShiftRight<16>(hn::BitCast(d, v)); };
  return hn::Add(sum, hn::Add(hn::Mul(low(a), low(b)), hn::Mul(high(a), high(b))));
#endif
}

// sum + the products of the four bytes of each lane, unsigned times signed, wrapping.
HWY_INLINE VI AddQuads(VI sum, V8 u, V8 s) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(u.raw), "v"(s.raw));
  return sum;
#else
  const hn::RebindToSigned<D16> d16;
  const V16 both = hn::BitCast(D16(), u);
  const auto factor = hn::BitCast(d16, s);
  sum = AddPairs(sum, hn::And(both, hn::Set(D16(), uint16_t{0xff})),
                 hn::BitCast(D16(), hn::ShiftRight<8>(hn::ShiftLeft<8>(factor))));
  return AddPairs(sum, hn::ShiftRight<8>(both), hn::BitCast(D16(), hn::ShiftRight<8>(factor)));
#endif
}

// Levels of a step as a product takes them. The constructors are written out: GCC 12 puts those that it makes itself
// outside the target's attributes.
template <size_t kCount>
struct StepVectors {
  HWY_INLINE StepVectors() {}
  template <class... V>
  HWY_INLINE explicit StepVectors(V... vectors) : v{vectors...} {}
  V8 v[kCount];
};

// How levels and factors meet in a 32-bit lane. kWords: words of factors a row and block; kVectors: vectors of levels a
// step.

// 16-bit factors: word j holds x of k = j (low half) and k = j + 8.
struct Pairs {
  static constexpr size_t kWords = 8, kVectors = 4;
  using Step = StepVectors<kVectors>;  // even bytes of both halves of n, odd bytes of both
  static HWY_INLINE Step Prepare(const StepLevels& levels) {
    const StepPairs pairs = ToPairs(levels);
    const D8 d;
    return Step(hn::BitCast(d, pairs.low[0]), hn::BitCast(d, pairs.low[1]), hn::BitCast(d, pairs.high[0]),
                hn::BitCast(d, pairs.high[1]));
  }
  struct Factor {
    V16 low, high;
  };
  static HWY_INLINE Factor Load(const uint32_t* at) {
    return {hn::BitCast(D16(), hn::Set(D32(), at[0])), hn::BitCast(D16(), hn::Set(D32(), at[4]))};
  }
  static HWY_INLINE VI Add(VI sum, const Step& step, int half, const Factor& x) {
    return AddPairs(AddPairs(sum, hn::BitCast(D16(), step.v[half]), x.low), hn::BitCast(D16(), step.v[2 + half]),
                    x.high);
  }
};

// 8-bit factors: word i holds x of k = i, i + 4, i + 8, i + 12. Queries are signed, levels lifted.
struct QuadQueries {
  static constexpr size_t kWords = 4, kVectors = 2;
  using Step = StepVectors<kVectors>;
  using Factor = V8;
  static HWY_INLINE Step Prepare(const StepLevels& levels) { return Step(levels.half[0], levels.half[1]); }
  static HWY_INLINE Factor Load(const uint32_t* at) { return hn::BitCast(D8(), hn::Set(D32(), at[0])); }
  static HWY_INLINE VI Add(VI sum, const Step& step, int half, Factor x) { return AddQuads(sum, step.v[half], x); }
};

// Weights are unsigned, levels signed.
struct QuadWeights : QuadQueries {
  static HWY_INLINE Step Prepare(const StepLevels& levels) {
    const V8 lift = hn::Set(D8(), static_cast<uint8_t>(kLift));
    return Step(hn::Xor(levels.half[0], lift), hn::Xor(levels.half[1], lift));
  }
  static HWY_INLINE VI Add(VI sum, const Step& step, int half, Factor x) { return AddQuads(sum, x, step.v[half]); }
};

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
  template <class Kind, int kStep>
  HWY_INLINE typename Kind::Step Get(size_t column, size_t part, size_t m) const {
    return Kind::Prepare(Levels<kStep>(column, part, m));
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

// What was decoded once for many rows (DecodeTile).
class TileSource {
 public:
  TileSource(const uint8_t* tile, size_t depth) : tile_(tile), blocks_(depth / kBlockDepth) {}

  template <class Kind, int kStep>
  HWY_INLINE typename Kind::Step Get(size_t column, size_t part, size_t m) const {
    const size_t parts = kBlockRowBytes / hn::Lanes(D8());
    const uint8_t* at =
        tile_ + (((column * parts + part) * blocks_ + m) * 4 + kStep) * Kind::kVectors * hn::Lanes(D8());
    typename Kind::Step step;
    for (size_t i = 0; i < Kind::kVectors; ++i) step.v[i] = hn::Load(D8(), at + i * hn::Lanes(D8()));
    return step;
  }
  HWY_INLINE void Prefetch(size_t, size_t) const {}
  bool prefetches() const { return false; }

 private:
  const uint8_t* tile_;
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

// codes of depth x width -> what TileSource reads: depth * width * kVectors / 2 bytes, aligned; width rounded up to a
// block's.
template <class Kind, int kBits>
void DecodeTile(const uint8_t* codes, size_t depth, size_t width, const uint8_t* next, uint8_t* tile) {
  const CodeSource<kBits> source(codes, depth, next);
  const size_t parts = kBlockRowBytes / hn::Lanes(D8()), all = depth / kBlockDepth;
  uint8_t* const begin = tile;
  for (size_t column = 0; column * kBlockWidth < width; ++column) {
    const size_t blocks = (column + 1) * kBlockWidth <= width ? all : all / 2;
    for (size_t part = 0; part < parts; ++part) {
      tile = begin + (column * parts + part) * all * 4 * Kind::kVectors * hn::Lanes(D8());
      for (size_t m = 0; m < blocks; ++m) {
        if (part == 0 && source.prefetches()) source.Prefetch(column, m);
        ForEachStep([&](auto step) HWY_ATTR {
          const auto levels = source.template Get<Kind, step>(column, part, m);
          for (size_t i = 0; i < Kind::kVectors; ++i, tile += hn::Lanes(D8())) hn::Store(levels.v[i], D8(), tile);
        });
      }
    }
  }
}

// Factors of each row: words[r * kRowStride + Kind::kWords * m + i]. The distance of rows is a constant, so that one
// pointer serves all of them.
struct FactorRows {
  const uint32_t* words;
  const int32_t* start;  // [rows * start_stride] what the sums begin with: -kLift * sum of x where levels are lifted
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

template <class Kind, int kRows, int kColumns, class Source>
HWY_INLINE void IntegerBlock(const Source& source, const FactorRows& x, const SumsOut& to, size_t row, size_t column,
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
  const uint32_t* HWY_RESTRICT words = x.words + row * kRowStride + Kind::kWords * x.m_begin;
  for (size_t m = x.m_begin; m < x.m_end; ++m, words += Kind::kWords) {
    for (int c = 0; c < kColumns && prefetch; ++c) source.Prefetch(column + static_cast<size_t>(c), m);
    ForEachStep([&](auto step) HWY_ATTR {
      typename Kind::Step levels[kColumns];
      for (int c = 0; c < kColumns; ++c) {
        levels[c] = source.template Get<Kind, step>(column + static_cast<size_t>(c), part, m);
      }
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const auto factor = Kind::Load(words + static_cast<size_t>(r) * kRowStride + step);
        for (int c = 0; c < kColumns; ++c) {
          for (int half = 0; half < 2; ++half) {
            sum[r][c][half] = Kind::Add(sum[r][c][half], levels[c], half, factor);
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

template <class Kind, int kColumns, class Source>
HWY_INLINE void IntegerColumns(const Source& source, const FactorRows& x, const SumsOut& to, size_t rows, size_t column,
                               size_t part) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) IntegerBlock<Kind, 4, kColumns>(source, x, to, r, column, part);
  if (rows - r == 3) IntegerBlock<Kind, 3, kColumns>(source, x, to, r, column, part);
  if (rows - r == 2) IntegerBlock<Kind, 2, kColumns>(source, x, to, r, column, part);
  if (rows - r == 1) IntegerBlock<Kind, 1, kColumns>(source, x, to, r, column, part);
}

// Blocks of 32 k x 16 n (src/bits/blocks.h): both halves go into one sum.
template <class Kind, int kRows, class Source>
HWY_INLINE void NarrowBlock(const Source& source, const FactorRows& x, const SumsOut& to, size_t row, size_t column,
                            size_t part) {
  const DI d;
  const hn::RebindToFloat<DI> df;
  VI sum[kRows];
  for (size_t r = 0; r < kRows; ++r) sum[r] = hn::Set(d, x.start[(row + r) * x.start_stride]);
  for (size_t m = x.m_begin / 2; m < (x.m_end + 1) / 2; ++m) {
    if (row == 0 && part == 0 && source.prefetches()) source.Prefetch(column, m);
    const uint32_t* HWY_RESTRICT words = x.words + row * kRowStride + 2 * Kind::kWords * m;
    ForEachStep([&](auto step) HWY_ATTR {
      const typename Kind::Step levels = source.template Get<Kind, step>(column, part, m);
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t half = 0; half < 2; ++half) {
          const auto factor = Kind::Load(words + r * kRowStride + half * Kind::kWords + step);
          sum[r] = Kind::Add(sum[r], levels, static_cast<int>(half), factor);
        }
      }
    });
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* out = to.out + (row + r) * to.stride + column * kBlockWidth + part * hn::Lanes(d);
    auto value = hn::ConvertTo(df, sum[r]);
    if (to.factor != nullptr) {
      value = hn::MulAdd(hn::Set(df, to.factor[(row + r) * to.factor_stride]), value, hn::LoadU(df, out));
    }
    hn::StoreU(value, df, out);
  }
}

// width: a multiple of half a kBlockWidth; an odd one has factors, 0 outside of m_begin and m_end.
template <class Kind, class Source>
void IntegerProduct(const Source& source, const FactorRows& x, size_t rows, size_t width, const SumsOut& to) {
  const size_t columns = width / kBlockWidth;
  for (size_t part = 0; part < kBlockRowBytes / hn::Lanes(D8()); ++part) {
    size_t column = 0;
    if constexpr (HWY_TARGET <= HWY_AVX3) {  // 32 registers
      for (; column + 2 <= columns; column += 2) IntegerColumns<Kind, 2>(source, x, to, rows, column, part);
    }
    for (; column < columns; ++column) IntegerColumns<Kind, 1>(source, x, to, rows, column, part);
    if (width % kBlockWidth == 0) continue;
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) NarrowBlock<Kind, 4>(source, x, to, r, column, part);
    for (; r < rows; ++r) NarrowBlock<Kind, 1>(source, x, to, r, column, part);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
