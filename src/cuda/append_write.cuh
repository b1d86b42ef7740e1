// SPDX-License-Identifier: Apache-2.0
// Codes of eight rows, four lanes a row -> words of a page: whole words of a run, or bytes among others' by atomics.
#pragma once

#include "src/cuda/layout.h"
#include "src/cuda/pack.h"
#include "src/cuda/quantise.cuh"

namespace tersekv::cuda {

// 4 x 4 bytes across four lanes that are 4 apart: lane t's byte j becomes lane j's byte t.
__device__ __forceinline__ uint32_t TransposeBytes(uint32_t a, int t) {
  const uint32_t x = __shfl_xor_sync(kFullWarp, a, 4);
  a = Permute(a, x, (t & 1) == 0 ? 0x6240 : 0x3715);
  const uint32_t y = __shfl_xor_sync(kFullWarp, a, 8);
  return Permute(a, y, (t & 2) == 0 ? 0x5410 : 0x3276);
}

// Two lanes that are `lanes` apart have half of the units of two groups each; afterwards the one without `upper` has
// all of the first group and the other all of the second. own: units i = 0, 1 of the first, then of the second group.
__device__ __forceinline__ void ExchangeUnits(const uint32_t (&own)[4][2], bool upper, int lanes, UnitBytes& unit) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t keep = upper ? own[2 + i][h] : own[i][h];
      const uint32_t other = __shfl_xor_sync(kFullWarp, upper ? own[i][h] : own[2 + i][h], lanes);
      unit[2 * i][h] = upper ? other : keep;
      unit[2 * i + 1][h] = upper ? keep : other;
    }
  }
}

// The two channels 8 apart of a V unit lie in neighbouring lanes: the even one takes h = 0 of both.
template <int d>
__device__ __forceinline__ void JoinHalves(RowBytes<d>& codes, int lane) {
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (auto& two : codes) {
    const uint32_t keep = odd ? two[1] : two[0];
    const uint32_t other = __shfl_xor_sync(kFullWarp, odd ? two[0] : two[1], 1);
    two[0] = odd ? other : keep;
    two[1] = odd ? keep : other;
  }
}

template <int bits>
__device__ __forceinline__ void StoreWords(uint8_t* group, int lane, const uint32_t (&words)[bits]) {
#pragma unroll
  for (int w = 0; w + 4 <= bits; w += 4) {
    *reinterpret_cast<uint4*>(group + WordOffset(bits, lane, w)) =
        make_uint4(words[w], words[w + 1], words[w + 2], words[w + 3]);
  }
  constexpr int kWhole = bits / 4 * 4;
  if constexpr (bits % 4 == 2) {
    *reinterpret_cast<uint2*>(group + WordOffset(bits, lane, kWhole)) = make_uint2(words[kWhole], words[kWhole + 1]);
  } else {
#pragma unroll
    for (int w = kWhole; w < bits; ++w) *reinterpret_cast<uint32_t*>(group + WordOffset(bits, lane, w)) = words[w];
  }
}

// Rows are tokens place .. place + 7 of `block`, place 0 or 8.
template <int bits, int d>
__device__ __forceinline__ void WriteRun(Kv side, const BlockLayout& layout, uint8_t* block, int place,
                                         RowBytes<d>& codes, uint16_t scale, int lane) {
  const int q = lane % 4, row = lane / 4;
  bool upper;
  int apart, owner;  // whose words they are
  if (side == Kv::kK) {
    upper = row % 2 != 0, apart = 4;
    owner = (place + row) / 2 * 4 + q;
  } else {
#pragma unroll
    for (auto& two : codes) {
#pragma unroll
      for (uint32_t& four : two) four = TransposeBytes(four, row % 4);
    }
    JoinHalves<d>(codes, lane);
    upper = q / 2 != 0, apart = 2;
    owner = 4 * (4 * (q % 2) + row % 4) + (place + row) / 4;
  }
  uint8_t* to = block + layout.codes(side);
#pragma unroll
  for (int pair = 0; pair < (d + 127) / 128; ++pair) {
    uint32_t own[4][2], words[bits];
    UnitBytes unit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // an odd group at the end: both lanes get all of it
      own[i][0] = codes[(4 * pair + i) % (d / 32)][0], own[i][1] = codes[(4 * pair + i) % (d / 32)][1];
    }
    ExchangeUnits(own, upper, apart, unit);
    PackUnits<bits>(unit, words);
    if (2 * pair + 1 < d / 64 || !upper)
      StoreWords<bits>(to + (2 * pair + (upper ? 1 : 0)) * GroupBytes(bits), owner, words);
  }
  if (q == 0) reinterpret_cast<uint16_t*>(block + layout.scales(side))[place + row] = scale;
}

// Sets what `mask` says of words that others may be writing.
template <int bits>
__device__ __forceinline__ void MergeWords(uint8_t* group, int lane, const UnitBytes& unit, const UnitBytes& mask) {
  uint32_t words[bits], own[bits];
  PackUnits<bits>(unit, words);
  PackUnits<bits>(mask, own);
#pragma unroll
  for (int w = 0; w < bits; ++w) {
    if (own[w] == 0) continue;
    unsigned* to = reinterpret_cast<unsigned*>(group + WordOffset(bits, lane, w));
    if (own[w] == ~0u) {
      *to = words[w];
    } else {
      atomicAnd(to, ~own[w]);
      if (words[w] != 0) atomicOr(to, words[w]);
    }
  }
}

// The lane's row goes to `block`, or nowhere when that is null; all lanes call it.
template <int bits, int d>
__device__ __forceinline__ void WriteSingle(Kv side, const BlockLayout& layout, uint8_t* block, int place,
                                            RowBytes<d>& codes, uint16_t scale, int lane) {
  const int q = lane % 4;
  if (side == Kv::kV) JoinHalves<d>(codes, lane);
  if (block == nullptr) return;
  uint8_t* to = block + layout.codes(side);
  if (q == 0) reinterpret_cast<uint16_t*>(block + layout.scales(side))[place] = scale;
#pragma unroll
  for (int j = 0; j < d / 64; ++j) {
    uint8_t* group = to + j * GroupBytes(bits);
    UnitBytes unit, mask;
    if (side == Kv::kK) {  // units 0 and 2, or 1 and 3
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          mask[u][h] = u % 2 == place % 2 ? ~0u : 0u;
          unit[u][h] = codes[2 * j + u / 2][h] & mask[u][h];
        }
      }
      MergeWords<bits>(group, place / 2 * 4 + q, unit, mask);
    } else {  // units 0 and 2, or 1 and 3; in each one byte of either half, for four owners
      const int byte = 8 * (place % 4);
#pragma unroll 1
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            mask[u][h] = u % 2 == q / 2 ? 0xffu << byte : 0u;
            unit[u][h] = (codes[2 * j + u / 2][h] >> (8 * e) & 0xffu) << byte & mask[u][h];
          }
        }
        MergeWords<bits>(group, 4 * (4 * (q % 2) + e) + place / 4, unit, mask);
      }
    }
  }
}

}  // namespace tersekv::cuda
