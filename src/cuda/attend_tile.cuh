// SPDX-License-Identifier: Apache-2.0
// One warp, one tile of tokens, up to 8 * kRowTiles query rows: scores, running softmax, weighted values. Products are
// transposed (S^T = K q^T, O^T = V^T p^T), so that codes are the left operand and query rows the eight columns.
//
// Softmax runs in base 2. The reference m is one of score + log2(value scale), so that weight * value scale, which
// becomes f16, stays below 2^6 however large the scales are; m moves only when a tile's weights exceed that.
//
// Integer products (ByteLoader): keys times 16-bit queries in two bytes, exact. Values, for up to 4 rows: weight *
// value scale is rounded to 16 bits, its high byte in columns 0 to 3, its low byte in columns 4 to 7, where rows
// repeat; the largest is just below 2^15 when m has moved, and m moves when one passes 2^16. Sums are 32-bit integers.
#pragma once

#include <type_traits>

#include "src/cuda/attend_view.cuh"

namespace tersekv::cuda {

template <class KL, class VL, int d, int kRowTiles, int kBlocks>
struct TileMath {
  static constexpr BlockLayout kLayout{KL::kBits, VL::kBits, d};
  static constexpr int kGroups = d / kGroupChannels, kSteps = d / 16;
  static constexpr int kQueryStride = 2 * d + 16;  // bytes of a row in shared memory, padded against bank conflicts

  static constexpr int kRowTileCount = kRowTiles;
  static constexpr bool kBf16 = KL::kBf16;
  static constexpr bool kKeyBytes = ByteLoader<KL>, kValueBytes = ByteLoader<VL>;
  static_assert(!kValueBytes || kRowTiles == 1, "bytes of weights need the columns of two rows");
  static constexpr float kRoom = kValueBytes ? 14.999f : 0.0f;  // a moved m is this far below the tile's largest
  // Steps before the state is handed over: weights of 16 bits add an error that grows with the root of the tokens that
  // share a reference, and sums must stay in 32 bits.
  static constexpr int kMostSteps = 2048 / (16 * kBlocks);
  using Sum = std::conditional_t<kValueBytes, int, float>;

  uint32_t q[kRowTiles][kSteps][2];  // bytes: the high ones of all steps of 32, then the low ones
  float factor[kRowTiles][2], bias[kRowTiles][2];
  float m[kRowTiles][2], l[kRowTiles][2];  // lane 4g + c: rows 2c and 2c + 1 of each row tile
  Sum acc[kRowTiles][kSteps][4];           // channels 16 i + g and + 8 of rows 2c and 2c + 1

  static __device__ __forceinline__ int Row(int tile, int column) {
    return kValueBytes ? column % 4 : 8 * tile + column;
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) {
      m[nt][0] = m[nt][1] = kEmpty;
      l[nt][0] = l[nt][1] = 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) acc[nt][i][0] = acc[nt][i][1] = acc[nt][i][2] = acc[nt][i][3] = 0;
    }
  }

  // query: [rows] of kQueryStride bytes; terms: [rows].
  __device__ __forceinline__ void LoadQuery(uint32_t query, const RowTerms* terms, int rows, int lane) {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        constexpr int kHalf = kSteps / 2;
        const int at =
            kKeyBytes ? i / kHalf * d + i % kHalf * 32 + c * 8 : 2 * (i / 4 * 64 + i / 2 % 2 * 32 + c * 8 + i % 2 * 4);
        uint2 v = make_uint2(0, 0);
        if (Row(nt, g) < rows) v = LoadShared2(query + Row(nt, g) * kQueryStride + at);
        q[nt][i][0] = v.x, q[nt][i][1] = v.y;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = min(Row(nt, 2 * c + i), rows - 1);
        factor[nt][i] = terms[row].factor;
        bias[nt][i] = terms[row].bias;
      }
    }
  }

  // tile: kBlocks blocks, an address of shared memory, or a pointer (raw ones only).
  template <class Tile, class View>
  __device__ __forceinline__ void Step(Tile tile, const View& view, int lane) {
    float score[kBlocks][kRowTiles][4];
    if constexpr (kKeyBytes) {
      ScoresOfBytes(tile, score, lane);
    } else {
      Scores(tile, score, lane);
    }
    float2 scale[kBlocks];  // of values: tokens 2g, 2g + 1
    ScaleAndMask(tile, view, score, scale, lane);
    if constexpr (kValueBytes) {
      AddBytes(tile, score, scale, lane);
    } else {
      AddHalves(tile, view, score, scale, lane);
    }
  }

  // Of rows 2c and 2c + 1; all lanes call it.
  __device__ __forceinline__ float Value(int nt, int s, int i) const {
    if constexpr (kValueBytes) {
      return 256.0f * static_cast<float>(acc[nt][s][i]) +
             static_cast<float>(__shfl_xor_sync(0xffffffffu, acc[nt][s][i], 2));
    } else {
      return acc[nt][s][i];
    }
  }

 private:
  template <class Tile, class View>
  __device__ __forceinline__ void AddHalves(Tile tile, const View& view, const float (&score)[kBlocks][kRowTiles][4],
                                            const float2 (&scale)[kBlocks], int lane) {
    uint32_t keep[kBlocks][2];  // raw values that nobody sees may be no numbers
    if constexpr (!VL::kScaled) {
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = view.first_token + 16 * k + 4 * (lane % 4) + i;
          keep[k][i] = (view.Seen(token) ? 0xffffu : 0u) | (view.Seen(token + 2) ? 0xffff0000u : 0u);
        }
      }
    }
    uint32_t weight[kBlocks][kRowTiles][2], weight_low[kBlocks][kRowTiles][2];
    float sum[kRowTiles][2];
    auto weigh = [&] {
      constexpr uint32_t kMost = VL::kBf16 ? 0x4280 : 0x5400;  // 2^6
      uint32_t top = 0;
#pragma unroll
      for (int nt = 0; nt < kRowTiles; ++nt) {
        sum[nt][0] = sum[nt][1] = 0;
#pragma unroll
        for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float p0 = Exp2(score[k][nt][2 * i] - m[nt][0]), p1 = Exp2(score[k][nt][2 * i + 1] - m[nt][1]);
            sum[nt][0] += p0, sum[nt][1] += p1;
            uint32_t& w = weight[k][nt][i];
            if constexpr (VL::kBf16) {  // two bf16 parts keep a weight's precision
              const __nv_bfloat162 high = __floats2bfloat162_rn(p0, p1);
              const float2 f = __bfloat1622float2(high);
              w = Bits(high);
              weight_low[k][nt][i] = Bits(__floats2bfloat162_rn(p0 - f.x, p1 - f.y));
            } else {
              const float x = i == 0 ? scale[k].x : scale[k].y;
              w = Bits(__floats2half2_rn(p0 * x, p1 * x));
            }
            top = MaxPairs<VL::kBf16>(top, w);
          }
        }
      }
      return (top & 0xffff) > kMost || top >> 16 > kMost;
    };
    if (__any_sync(0xffffffffu, weigh())) {
      MoveUp(score, scale);
      weigh();
    }
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        l[nt][i] += sum[nt][i];
#pragma unroll
        for (int k = 0; k < kBlocks; ++k) {
          weight[k][nt][i] = Transpose(weight[k][nt][i]);
          if constexpr (VL::kBf16) weight_low[k][nt][i] = Transpose(weight_low[k][nt][i]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        uint32_t r[4][4];
        DecodeGroup<VL, Kv::kV>(
            LoadWords<VL::kBits>(tile + k * kLayout.bytes() + kLayout.codes(Kv::kV) + j * GroupBytes(VL::kBits), lane),
            r);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          uint32_t a[4] = {r[u][0], r[u][2], r[u][1], r[u][3]};
          if constexpr (!VL::kScaled) a[0] &= keep[k][0], a[1] &= keep[k][0], a[2] &= keep[k][1], a[3] &= keep[k][1];
#pragma unroll
          for (int nt = 0; nt < kRowTiles; ++nt) {
            Mma<VL::kBf16>(acc[nt][4 * j + u], a, weight[k][nt]);
            if constexpr (VL::kBf16) Mma<true>(acc[nt][4 * j + u], a, weight_low[k][nt]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void AddBytes(uint32_t tile, const float (&score)[kBlocks][kRowTiles][4],
                                           const float2 (&scale)[kBlocks], int lane) {
    constexpr float kLift = 0x1p23f;  // a float above it ends in its integer
    float weight[kBlocks][4], sum[2];
    auto round = [&] {
      uint32_t top = 0;
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = Exp2(score[k][0][i] - m[0][i % 2]);
          sum[i % 2] += p;
          weight[k][i] = fmaf(p, i < 2 ? scale[k].x : scale[k].y, kLift);
          top |= __float_as_uint(weight[k][i]);
        }
      }
      return (top & ~0x4B00FFFFu) != 0;  // 0x4B000000: kLift
    };
    if (__any_sync(0xffffffffu, round())) {
      MoveUp(score, scale);
      round();
    }
    l[0][0] += sum[0];
    l[0][1] += sum[1];
    const uint32_t byte = lane % 4 < 2 ? 0x0051 : 0x0040;
    uint32_t weights[kBlocks + kBlocks % 2] = {};
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      auto bits = [&](int i) { return __float_as_uint(weight[k][i]); };
      weights[k] = Transpose(Permute(Permute(bits(0), bits(2), byte), Permute(bits(1), bits(3), byte), 0x5410));
    }
#pragma unroll
    for (int k = 0; k < kBlocks; k += 2) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        uint32_t r[2][4][2] = {};
#pragma unroll
        for (int i = 0; i < 2 && k + i < kBlocks; ++i) {
          const uint32_t block = tile + (k + i) * kLayout.bytes();
          DecodeGroupBytes<VL>(LoadWords<VL::kBits>(block + kLayout.codes(Kv::kV) + j * GroupBytes(VL::kBits), lane),
                               r[i]);
        }
        const uint32_t b[2] = {weights[k], weights[k + 1]};
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const uint32_t a[4] = {r[0][u][0], r[0][u][1], r[1][u][0], r[1][u][1]};
          MmaBytes<false>(acc[0][4 * j + u], a, b);
        }
      }
    }
  }

  __device__ __forceinline__ void ScoresOfBytes(uint32_t tile, float (&score)[kBlocks][kRowTiles][4], int lane) const {
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      int high[kRowTiles][4] = {}, low[kRowTiles][4] = {};
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        uint32_t r[4][2];
        DecodeGroupBytes<KL>(LoadWords<KL::kBits>(tile + k * kLayout.bytes() + j * GroupBytes(KL::kBits), lane), r);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const uint32_t a[4] = {r[2 * pair][0], r[2 * pair + 1][0], r[2 * pair][1], r[2 * pair + 1][1]};
#pragma unroll
          for (int nt = 0; nt < kRowTiles; ++nt) {
            MmaBytes<true>(high[nt], a, q[nt][2 * j + pair]);
            MmaBytes<true>(low[nt], a, q[nt][kSteps / 2 + 2 * j + pair]);
          }
        }
      }
#pragma unroll
      for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[k][nt][i] = static_cast<float>(high[nt][i] * 256 + low[nt][i]);
      }
    }
  }

  template <class Tile>
  __device__ __forceinline__ void Scores(Tile tile, float (&score)[kBlocks][kRowTiles][4], int lane) const {
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
      for (int nt = 0; nt < kRowTiles; ++nt) score[k][nt][0] = score[k][nt][1] = score[k][nt][2] = score[k][nt][3] = 0;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        uint32_t r[4][4];
        DecodeGroup<KL, Kv::kK>(LoadWords<KL::kBits>(tile + k * kLayout.bytes() + j * GroupBytes(KL::kBits), lane), r);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t a[4] = {r[2 * pair][2 * half], r[2 * pair + 1][2 * half], r[2 * pair][2 * half + 1],
                                   r[2 * pair + 1][2 * half + 1]};
#pragma unroll
            for (int nt = 0; nt < kRowTiles; ++nt) Mma<KL::kBf16>(score[k][nt], a, q[nt][4 * j + 2 * pair + half]);
          }
        }
      }
    }
  }

  // Scores become logits in base 2.
  template <class Tile, class View>
  __device__ __forceinline__ void ScaleAndMask(Tile tile, const View& view, float (&score)[kBlocks][kRowTiles][4],
                                               float2 (&scale)[kBlocks], int lane) {
    const int g = lane / 4, c = lane % 4;
    const bool edge = view.Edge(16 * kBlocks);
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      float2 key = make_float2(1, 1);
      scale[k] = make_float2(1, 1);
      if constexpr (KL::kScaled) {
        key = Widen(LoadShared(tile + k * kLayout.bytes() + kLayout.scales(Kv::kK) + 4 * g));
      }
      if constexpr (VL::kScaled) {  // at least 2^-100 or 2^-90, so that weights relative to m stay finite
        constexpr uint32_t kLeast = kValueBytes ? 0x12801280u : 0x0D800D80u;
        scale[k] =
            Widen(MaxPairs<true>(LoadShared(tile + k * kLayout.bytes() + kLayout.scales(Kv::kV) + 4 * g), kLeast));
      }
#pragma unroll
      for (int nt = 0; nt < kRowTiles; ++nt) {
        float* x = score[k][nt];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = fmaf(x[i] * (i < 2 ? key.x : key.y), factor[nt][i % 2], bias[nt][i % 2]);
      }
    }
    if (edge || view.softcap != 0 || view.alibi_slopes != nullptr) ChangeScores(view, score, scale, g, c);
  }

  // After weights that are too large.
  __device__ __forceinline__ void MoveUp(const float (&score)[kBlocks][kRowTiles][4], const float2 (&scale)[kBlocks]) {
    float top[kRowTiles][2];
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      float2 shift = make_float2(0, 0);
      if constexpr (VL::kScaled) shift = make_float2(Log2(scale[k].x), Log2(scale[k].y));
#pragma unroll
      for (int nt = 0; nt < kRowTiles; ++nt) {
        const float* x = score[k][nt];
        const float even = fmaxf(x[0] + shift.x, x[2] + shift.y), odd = fmaxf(x[1] + shift.x, x[3] + shift.y);
        top[nt][0] = k == 0 ? even : fmaxf(top[nt][0], even);
        top[nt][1] = k == 0 ? odd : fmaxf(top[nt][1], odd);
      }
    }
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x = top[nt][i] - kRoom;
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
        x = fmaxf(x, m[nt][i]);
        const float f = Exp2(m[nt][i] - x);
        m[nt][i] = x;
        l[nt][i] *= f;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
          for (int j = i; j < 4; j += 2) {
            if constexpr (kValueBytes) {
              acc[nt][s][j] = __float2int_rn(static_cast<float>(acc[nt][s][j]) * f);
            } else {
              acc[nt][s][j] *= f;
            }
          }
        }
      }
    }
  }

  // Softcap, ALiBi, and tokens that a row does not see.
  template <class View>
  static __device__ __forceinline__ void ChangeScores(const View& view, float (&score)[kBlocks][kRowTiles][4],
                                                      float2 (&scale)[kBlocks], int g, int c) {
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      const int first = view.first_token + 16 * k + 2 * g;
      if (!view.Seen(first)) scale[k].x = 0;
      if (!view.Seen(first + 1)) scale[k].y = 0;
    }
#pragma unroll
    for (int nt = 0; nt < kRowTiles; ++nt) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = view.row0 + Row(nt, 2 * c + i);
        const int end = min(view.length - view.q_len + 1 + row / view.group, view.length);
        const auto seen = view.RowOf(end);
        const float slope = view.alibi_slopes != nullptr ? view.alibi_slopes[row % view.group] * kLog2E : 0.0f;
#pragma unroll
        for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& x = score[k][nt][i + 2 * j];
            const int token = view.first_token + 16 * k + 2 * g + j;
            if (view.softcap != 0) {  // cap * tanh(x / cap)
              x = view.softcap * (1.0f - __fdividef(2.0f, Exp2(x * view.two_over_softcap) + 1.0f));
            }
            x = fmaf(slope, static_cast<float>(token - end + 1), x);
            if (seen.Hides(token)) x = -INFINITY;
          }
        }
      }
    }
  }

  static __device__ __forceinline__ float2 Widen(uint32_t bf16) {
    return make_float2(__uint_as_float(bf16 << 16), __uint_as_float(bf16 & 0xffff0000u));
  }
};

}  // namespace tersekv::cuda
