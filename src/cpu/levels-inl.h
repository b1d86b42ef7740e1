// SPDX-License-Identifier: Apache-2.0
// Blocks (src/bits/blocks.h) -> levels in registers: the one place that knows how kernels read each width. Levels are
// lifted by 128 so that they are unsigned bytes: the even and odd bytes of a lane widen with one mask or one shift.
// Per-target include guard.

#if defined(TERSEKV_CPU_LEVELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_LEVELS_INL_H_
#undef TERSEKV_CPU_LEVELS_INL_H_
#else
#define TERSEKV_CPU_LEVELS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "src/bits/blocks.h"
#include "src/codec/lloyd_max.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of these kernels: at most one row of a block.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using D8 = hn::CappedTag<uint8_t, 64>;
using V8 = hn::Vec<D8>;
using D16 = hn::RepartitionToWide<D8>;
using D32 = hn::RepartitionToWide<D16>;
using V16 = hn::Vec<D16>;

inline constexpr int kLift = 128;

// Levels of one step of a block, a vector wide: byte 4l + b of half h is k = step + 4b, n = 16 * h + l.
struct StepLevels {
  V8 half[2];
};

// The same as operands: 16-bit lanes 2l and 2l + 1 of low[h] are k = step and step + 8 of n = 16 * h + l; of high[h],
// k = step + 4 and step + 12.
struct StepPairs {
  V16 low[2], high[2];
};

HWY_INLINE StepPairs ToPairs(const StepLevels& levels) {
  // One expression: GCC 12 makes a default constructor of vectors outside the target's attributes.
  const V16 mask = hn::Set(D16(), uint16_t{0xff});
  const V16 first = hn::BitCast(D16(), levels.half[0]), second = hn::BitCast(D16(), levels.half[1]);
  return {{hn::And(first, mask), hn::And(second, mask)}, {hn::ShiftRight<8>(first), hn::ShiftRight<8>(second)}};
}

template <int kBits>
class BlockReader {
 public:
  BlockReader() {
    const LevelTable& levels = LevelsOf(kBits);
    const auto fill = [&](auto&& code_of) {
      HWY_ALIGN uint8_t table[16];
      for (int i = 0; i < 16; ++i) table[i] = static_cast<uint8_t>(levels.level[code_of(i)] + kLift);
      return hn::LoadDup128(D8(), table);
    };
    if constexpr (kBits == 2) {
      first_ = fill([](int i) { return static_cast<size_t>(i % 4); });
      second_ = fill([](int i) { return static_cast<size_t>(i / 4); });
    } else if constexpr (kBits == 3) {
      first_ = fill([](int i) { return static_cast<size_t>(i % 8); });
    } else if constexpr (kBits == 4) {
      first_ = fill([](int i) { return static_cast<size_t>(i); });
    } else if constexpr (kBits == 5 || kBits == 6) {  // magnitudes
      first_ = fill([](int i) { return static_cast<size_t>((1 << (kBits - 1)) + i); });
      if constexpr (kBits == 6) second_ = fill([](int i) { return static_cast<size_t>(32 + 16 + i); });
    }
  }

  // block: 64-byte rows; part: which vector of each row.
  template <int kStep>
  HWY_INLINE StepLevels Read(const uint8_t* HWY_RESTRICT block, size_t part) const {
    const uint8_t* HWY_RESTRICT rows = block + part * hn::Lanes(D8());
    if constexpr (kBits == 8) {
      return {{Row(rows, 2 * kStep), Row(rows, 2 * kStep + 1)}};
    } else if constexpr (kBits == 4 || (kBits == 3 && kStep < 3)) {
      return LookUp(first_, Row(rows, kStep));
    } else if constexpr (kBits == 3) {
      return LookUp(first_, hn::Or(hn::Or(hn::And(Shift<3>(Row(rows, 0)), Byte(0x11)),
                                          hn::And(Shift<2>(Row(rows, 1)), Byte(0x22))),
                                   hn::And(Shift<1>(Row(rows, 2)), Byte(0x44))));
    } else if constexpr (kBits == 2) {  // each nibble holds a code of two steps
      return LookUp(kStep % 2 == 0 ? first_ : second_, Row(rows, kStep / 2));
    } else {
      return {{ReadPlanes<kStep, 0>(rows), ReadPlanes<kStep, 1>(rows)}};
    }
  }

 private:
  static HWY_INLINE V8 Byte(int value) { return hn::Set(D8(), static_cast<uint8_t>(value)); }
  static HWY_INLINE V8 Row(const uint8_t* rows, int r) {
    return hn::LoadU(D8(), rows + static_cast<size_t>(r) * kBlockRowBytes);
  }
  // Bits of the neighbouring byte come in: mask what is kept.
  template <int kBy>
  static HWY_INLINE V8 Shift(V8 v) {
    return hn::BitCast(D8(), hn::ShiftRight<kBy>(hn::BitCast(D16(), v)));
  }
  static HWY_INLINE StepLevels LookUp(V8 table, V8 nibbles) {
    return {{hn::TableLookupBytes(table, hn::And(nibbles, Byte(15))),
             hn::TableLookupBytes(table, hn::And(Shift<4>(nibbles), Byte(15)))}};
  }
  // A nibble and the planes above it: 5 = magnitude, sign; 6 = magnitude (5 bits), sign; 7 = a grid.
  template <int kStep, int kHalf>
  HWY_INLINE V8 ReadPlanes(const uint8_t* rows) const {
    constexpr int kCrumb = 4 * kHalf + 2 * (kStep % 2);
    constexpr int kBit = 2 * kStep + kHalf;
    const V8 nibble = hn::And(Shift<4 * kHalf>(Row(rows, kStep)), Byte(15));
    if constexpr (kBits == 5) {
      const V8 value = hn::TableLookupBytes(first_, nibble);
      return Signed(value, hn::TestBit(Row(rows, 4), Byte(1 << kBit)));
    } else if constexpr (kBits == 6) {
      const V8 crumbs = Row(rows, 4 + kStep / 2);
      const V8 value = hn::IfThenElse(hn::TestBit(crumbs, Byte(1 << kCrumb)), hn::TableLookupBytes(second_, nibble),
                                      hn::TableLookupBytes(first_, nibble));
      return Signed(value, hn::TestBit(crumbs, Byte(2 << kCrumb)));
    } else {
      const V8 middle = hn::And(MoveBit<kCrumb, 4>(Row(rows, 4 + kStep / 2)), Byte(0x30));
      const V8 top = hn::And(MoveBit<kBit, 6>(Row(rows, 6)), Byte(0x40));
      return hn::Add(hn::Or(hn::Or(nibble, middle), top), Byte(kLift - LevelsOf(7).grid));
    }
  }
  template <int kFrom, int kTo>
  static HWY_INLINE V8 MoveBit(V8 v) {
    if constexpr (kFrom <= kTo) return hn::BitCast(D8(), hn::ShiftLeft<kTo - kFrom>(hn::BitCast(D16(), v)));
    if constexpr (kFrom > kTo) return Shift<kFrom - kTo>(v);
  }
  // 128 + m -> 128 - m where negative.
  static HWY_INLINE V8 Signed(V8 lifted, hn::Mask<D8> negative) {
    return hn::IfThenElse(negative, hn::Sub(hn::Zero(D8()), lifted), lifted);
  }

  V8 first_ = hn::Zero(D8()), second_ = hn::Zero(D8());
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
