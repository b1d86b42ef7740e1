// SPDX-License-Identifier: Apache-2.0
// A Loader is what a codec looks like to the attention kernel: how many words a lane owns of a group of 64 channels,
// and how their four units of eight codes become operands of a tensor core product (src/cuda/layout.h). Tables come
// from the codec's one definition, src/codec/lloyd_max.h.
#pragma once

#include <concepts>
#include <cstdint>

#include "src/codec/lloyd_max.h"
#include "src/cuda/layout.h"
#include "src/cuda/ptx.cuh"

namespace tersekv::cuda {

template <int kBits>
struct Words {
  uint32_t w[kBits];
};

// A lane's words of the group at `group` (shared memory).
template <int kBits>
__device__ __forceinline__ Words<kBits> LoadWords(uint32_t group, int lane) {
  Words<kBits> r;
#pragma unroll
  for (int w = 0; w + 4 <= kBits; w += 4) {
    const uint4 v = LoadShared4(group + WordOffset(kBits, lane, w));
    r.w[w] = v.x, r.w[w + 1] = v.y, r.w[w + 2] = v.z, r.w[w + 3] = v.w;
  }
  constexpr int kWhole = kBits / 4 * 4;
  if constexpr (kBits % 4 == 2) {
    const uint2 v = LoadShared2(group + WordOffset(kBits, lane, kWhole));
    r.w[kWhole] = v.x, r.w[kWhole + 1] = v.y;
  } else {
#pragma unroll
    for (int w = kWhole; w < kBits; ++w) r.w[w] = LoadShared(group + WordOffset(kBits, lane, w));
  }
  return r;
}

// The same from device memory.
template <int kBits>
__device__ __forceinline__ Words<kBits> LoadWords(const uint8_t* group, int lane) {
  static_assert(kBits % 4 == 0);
  Words<kBits> r;
#pragma unroll
  for (int w = 0; w < kBits; w += 4) {
    const uint4 v = __ldcs(reinterpret_cast<const uint4*>(group + WordOffset(kBits, lane, w)));
    r.w[w] = v.x, r.w[w + 1] = v.y, r.w[w + 2] = v.z, r.w[w + 3] = v.w;
  }
  return r;
}

// Operands of one unit, pairs of 16-bit floats. K: codes (0,1) (2,3) (4,5) (6,7); V: (0,2) (1,3) (4,6) (5,7).
using Operands = uint32_t[4];

template <class L>
concept Loader = requires(const Words<L::kBits>& words, Operands& r) {
  { L::kBits } -> std::convertible_to<int>;     // of a value
  { L::kUnit } -> std::convertible_to<float>;   // operand * kUnit = level
  { L::kScaled } -> std::convertible_to<bool>;  // each vector has a bf16 scale, mean and rotation; raw has none
  { L::kBf16 } -> std::convertible_to<bool>;    // operands are bf16, else f16
  L::template Decode<Kv::kK, 0>(words, r);
  L::template Decode<Kv::kV, 3>(words, r);
};

// Optional: levels as signed bytes, codes 0..3 and 4..7 of a unit, for integer products. Exact, and no bytes need to be
// joined to halves; queries and weights become 16-bit integers in two bytes (attend_tile.cuh).
template <class L>
concept ByteLoader = Loader<L> && requires(const Words<L::kBits>& words, uint32_t (&r)[2]) {
  L::template DecodeBytes<0>(words, r);
};

// What an operand times this is a level.
template <class L>
inline constexpr float kUnitOf = ByteLoader<L> ? 1.0f : L::kUnit;

// A loader without its bytes.
template <class L>
struct AsHalves {
  static constexpr int kBits = L::kBits;
  static constexpr float kUnit = L::kUnit;
  static constexpr bool kScaled = L::kScaled, kBf16 = L::kBf16;

  template <Kv kSide, int u>
  static __device__ __forceinline__ void Decode(const Words<kBits>& words, Operands& r) {
    L::template Decode<kSide, u>(words, r);
  }
};

template <class L>
constexpr void CheckLoader() {
  static_assert(Loader<L>, "a Loader says kBits, kUnit, kScaled, kBf16 and Decode<side, unit>(words, operands)");
  static_assert(BitsSupported(L::kBits), "src/cuda/layout.h places values of 2 to 6, 8 and 16 bits");
  static_assert(L::kScaled || L::kBits == kRawBits, "values without a scale are 16 bits wide");
}

namespace internal {

// Bytes [first, first + 4) of the magnitudes of a table as one word.
constexpr uint32_t Magnitudes(int bits, int first) {
  uint32_t r = 0;
  const int half = 1 << (bits - 1);
  for (int i = 0; i < 4; ++i) {
    const int at = (first + i) % half;
    r |= static_cast<uint32_t>(LevelsOf(bits).level[static_cast<size_t>(half + at)]) << (8 * i);
  }
  return r;
}
template <int kBits, int kFirst>
inline constexpr uint32_t kMagnitudes = Magnitudes(kBits, kFirst);

// Magnitudes of four codes whose low three index bits are the nibbles of `select`. high[i]: byte masks of index bit
// 3 + i.
template <int kBits, int kFirst, int kHigh>
__device__ __forceinline__ uint32_t Lookup(uint32_t select, const uint32_t* high) {
  if constexpr (kHigh == 0) {
    return Permute(kMagnitudes<kBits, kFirst>, kMagnitudes<kBits, kFirst + 4>, select);
  } else {
    return Blend(high[kHigh - 1], Lookup<kBits, kFirst + (4 << kHigh), kHigh - 1>(select, high),
                 Lookup<kBits, kFirst, kHigh - 1>(select, high));
  }
}

// f16 subnormals: a magnitude as low byte and a sign as high byte are +-magnitude * 2^-24, exact in the product.
template <Kv kSide>
__device__ __forceinline__ void Join(uint32_t low0, uint32_t high0, uint32_t low1, uint32_t high1, Operands& r) {
  constexpr uint32_t kFirst = kSide == Kv::kK ? 0x5140 : 0x6240, kSecond = kSide == Kv::kK ? 0x7362 : 0x7351;
  r[0] = Permute(low0, high0, kFirst);
  r[1] = Permute(low0, high0, kSecond);
  r[2] = Permute(low1, high1, kFirst);
  r[3] = Permute(low1, high1, kSecond);
}

inline constexpr uint32_t kTop = 0x80808080u;

// level + lift of the stored codes [first, first + 4), a byte each.
constexpr uint32_t LevelBytes(int bits, int first, int lift) {
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const int level = LevelsOf(bits).level[static_cast<size_t>(CanonicalCode(bits, first + i))];
    r |= static_cast<uint32_t>((level + lift) & 255) << (8 * i);
  }
  return r;
}
template <int kBits, int kFirst, int kLift>
inline constexpr uint32_t kLevelBytes = LevelBytes(kBits, kFirst, kLift);

}  // namespace internal

// 4 to 6 bits.
template <int bits>
struct LloydMaxLoader {
  static constexpr int kBits = bits;
  static constexpr float kUnit = 0x1p24f;
  static constexpr bool kScaled = true, kBf16 = false;

  template <Kv kSide, int u>
  static __device__ __forceinline__ void Decode(const Words<kBits>& words, Operands& r) {
    using internal::kTop;
    uint32_t w, high[2][2], sign[2];  // halves: codes 0..3, 4..7
    w = words.w[u];
    sign[0] = (bits == 4 ? w : words.w[4] << (2 * u)) & kTop;
    sign[1] = (bits == 4 ? w << 4 : words.w[4] << (2 * u + 1)) & kTop;
    if constexpr (bits >= 5) {  // Permute repeats the top bit of a byte for selectors of 8 and more
      high[0][0] = Permute(w, w, 0xBA98);
      high[1][0] = Permute(w << 4, 0, 0xBA98);
    }
    if constexpr (bits == 6) {
      high[0][1] = Permute(words.w[5] << (2 * u), 0, 0xBA98);
      high[1][1] = Permute(words.w[5] << (2 * u + 1), 0, 0xBA98);
    }
    constexpr int kHigh = bits > 4 ? bits - 4 : 0;
    const uint32_t select = w & 0x77777777u;
    internal::Join<kSide>(internal::Lookup<bits, 0, kHigh>(select, high[0]), sign[0],
                          internal::Lookup<bits, 0, kHigh>(select >> 16, high[1]), sign[1], r);
  }
};

// 2 bits: the operand's high byte is looked up, its low byte is the same for every code. 1514 / 1024 and 4 * 1258 /
// 1024 stand for the levels 34 and 113 to within 2e-5.
template <>
struct LloydMaxLoader<2> {
  static constexpr int kBits = 2;
  static constexpr float kUnit = 1024.0f / 44.53025f;
  static constexpr bool kScaled = true, kBf16 = false;
  static_assert(LevelsOf(2).level[2] == 34 && LevelsOf(2).level[3] == 113, "operands are made for these levels");

  template <Kv kSide, int u>
  static __device__ __forceinline__ void Decode(const Words<2>& words, Operands& r) {
    constexpr uint32_t kHigh = 0xC4BD443Du, kLow = 0xEAEAEAEAu;
    const uint32_t select = Select<u>(words);
    const uint32_t h0 = Permute(kHigh, kHigh, select), h1 = Permute(kHigh, kHigh, select >> 16);
    constexpr uint32_t kFirst = kSide == Kv::kK ? 0x1404 : 0x2404, kSecond = kSide == Kv::kK ? 0x3424 : 0x3414;
    r[0] = Permute(h0, kLow, kFirst);
    r[1] = Permute(h0, kLow, kSecond);
    r[2] = Permute(h1, kLow, kFirst);
    r[3] = Permute(h1, kLow, kSecond);
  }

  template <int u>
  static __device__ __forceinline__ void DecodeBytes(const Words<2>& words, uint32_t (&r)[2]) {
    constexpr uint32_t kLevels = internal::kLevelBytes<2, 0, 0>;
    const uint32_t select = Select<u>(words);
    r[0] = Permute(kLevels, kLevels, select);
    r[1] = Permute(kLevels, kLevels, select >> 16);
  }

 private:
  template <int u>
  static __device__ __forceinline__ uint32_t Select(const Words<2>& words) {
    return (u % 2 == 0 ? words.w[u / 2] : words.w[u / 2] >> 2) & 0x33333333u;
  }
};

namespace internal {

// Bytes of level + 128: 0x6400 | byte is 1024 + byte in f16, so that 1152 less is the level. low, high: codes
// 0..3, 4..7.
template <Kv kSide>
__device__ __forceinline__ void JoinBytes(uint32_t low, uint32_t high, Operands& r) {
  constexpr uint32_t kFirst = kSide == Kv::kK ? 0x4140 : 0x4240, kSecond = kSide == Kv::kK ? 0x4342 : 0x4341;
  const __half2 shift = __float2half2_rn(-1152.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t v = Permute(i < 2 ? low : high, 0x64646464u, i % 2 == 0 ? kFirst : kSecond);
    r[i] = Bits(__hadd2(*reinterpret_cast<const __half2*>(&v), shift));
  }
}

}  // namespace internal

// 3 bits: one lookup has all eight levels.
template <>
struct LloydMaxLoader<3> {
  static constexpr int kBits = 3;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kScaled = true, kBf16 = false;

  template <Kv kSide, int u>
  static __device__ __forceinline__ void Decode(const Words<3>& words, Operands& r) {
    constexpr uint32_t kLow = internal::kLevelBytes<3, 0, 128>, kHigh = internal::kLevelBytes<3, 4, 128>;
    const uint32_t select = Select<u>(words);
    internal::JoinBytes<kSide>(Permute(kLow, kHigh, select), Permute(kLow, kHigh, select >> 16), r);
  }

  template <int u>
  static __device__ __forceinline__ void DecodeBytes(const Words<3>& words, uint32_t (&r)[2]) {
    constexpr uint32_t kLow = internal::kLevelBytes<3, 0, 0>, kHigh = internal::kLevelBytes<3, 4, 0>;
    const uint32_t select = Select<u>(words);
    r[0] = Permute(kLow, kHigh, select);
    r[1] = Permute(kLow, kHigh, select >> 16);
  }

 private:
  template <int u>
  static __device__ __forceinline__ uint32_t Select(const Words<3>& words) {
    if constexpr (u < 3) {
      return words.w[u] & 0x77777777u;
    } else {
      return AndOr(words.w[2] >> 1, 0x44444444u, AndOr(words.w[1] >> 2, 0x22222222u, (words.w[0] >> 3) & 0x11111111u));
    }
  }
};

template <>
struct LloydMaxLoader<8> {
  static constexpr int kBits = 8;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kScaled = true, kBf16 = false;

  template <Kv kSide, int u>
  static __device__ __forceinline__ void Decode(const Words<8>& words, Operands& r) {
    internal::JoinBytes<kSide>(words.w[2 * u], words.w[2 * u + 1], r);
  }
};

template <bool bf16>
struct RawLoader {
  static constexpr int kBits = kRawBits;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kScaled = false, kBf16 = bf16;

  template <Kv kSide, int u>
  static __device__ __forceinline__ void Decode(const Words<kRawBits>& words, Operands& r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = words.w[4 * u + i];
  }
};

}  // namespace tersekv::cuda
