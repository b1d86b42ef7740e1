// SPDX-License-Identifier: Apache-2.0
// KIVI and prod records in plain loops, written from docs/formats.md and docs/numerics.md. They share the packing of
// codes, fp16 and RotationOp::Apply with src/ and nothing else.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/half.h"
#include "src/bits/pack.h"
#include "tests/reference/plain_encode.h"

namespace tersekv::reference {

inline void AppendHalf(uint16_t half, std::vector<uint8_t>* bytes) {
  bytes->push_back(static_cast<uint8_t>(half & 0xff));
  bytes->push_back(static_cast<uint8_t>(half >> 8));
}

inline void AppendCodes(const std::vector<uint8_t>& codes, int bits, std::vector<uint8_t>* bytes) {
  if (bits == 0) return;
  std::vector<uint8_t> packed(PackedBytes(codes.size(), bits));
  PackBits(codes.data(), codes.size(), bits, packed.data());
  bytes->insert(bytes->end(), packed.begin(), packed.end());
}

// One affine group: its codes, scale and zero.
struct PlainAffine {
  PlainAffine(const std::vector<float>& x, int bits) {
    float lo = x[0], hi = x[0];
    for (const float v : x) {
      lo = std::min(lo, v);
      hi = std::max(hi, v);
    }
    const float levels = static_cast<float>((1 << bits) - 1);
    scale = F32ToF16(std::min((hi - lo) / levels, 65504.0f));
    zero = F32ToF16(std::clamp(lo == 0 ? 0.0f : lo, -65504.0f, 65504.0f));
    const float s = F16ToF32(scale), z = F16ToF32(zero);
    for (const float v : x) {
      const float code = s == 0 ? 0 : std::clamp(std::nearbyint((v - z) / s), 0.0f, levels);
      codes.push_back(static_cast<uint8_t>(code));
    }
  }
  std::vector<uint8_t> codes;
  uint16_t scale, zero;
};

// rows: [page_tokens, d]
inline std::vector<uint8_t> PlainKiviPage(const std::vector<float>& rows, size_t d, int bits) {
  std::vector<uint8_t> codes(rows.size()), record;
  std::vector<uint16_t> scales, zeros;
  for (size_t c = 0; c < d; ++c) {
    std::vector<float> x;
    for (size_t at = c; at < rows.size(); at += d) x.push_back(rows[at]);
    const PlainAffine affine(x, bits);
    for (size_t t = 0; t < x.size(); ++t) codes[t * d + c] = affine.codes[t];
    scales.push_back(affine.scale);
    zeros.push_back(affine.zero);
  }
  AppendCodes(codes, bits, &record);
  for (const uint16_t s : scales) AppendHalf(s, &record);
  for (const uint16_t z : zeros) AppendHalf(z, &record);
  return record;
}

inline std::vector<uint8_t> PlainKiviValue(const float* y, size_t d, size_t group, int bits) {
  std::vector<uint8_t> codes, record;
  std::vector<uint16_t> scales, zeros;
  for (size_t first = 0; first < d; first += group) {
    const PlainAffine affine(std::vector<float>(y + first, y + std::min(first + group, d)), bits);
    codes.insert(codes.end(), affine.codes.begin(), affine.codes.end());
    scales.push_back(affine.scale);
    zeros.push_back(affine.zero);
  }
  AppendCodes(codes, bits, &record);
  for (const uint16_t s : scales) AppendHalf(s, &record);
  for (const uint16_t z : zeros) AppendHalf(z, &record);
  return record;
}

// y: sqrt(d) R x' of norm s before the rotation. projection: signs of H diag(signs), or S row-major.
inline std::vector<uint8_t> PlainProd(const std::vector<float>& y, float s, int bits, const std::vector<float>& signs,
                                      const std::vector<float>& gaussian) {
  const size_t d = y.size();
  const float sqrt_d = std::sqrt(static_cast<float>(d));
  PlainLevels levels;
  if (bits == 1) levels = {{0}, 1};
  if (bits == 2) levels = {{-1, 1}, .797885f};
  if (bits > 2) levels = LevelsOfWidth(bits - 1);
  const bool grid = bits == 8;
  const size_t count = levels.level.size();
  std::vector<uint8_t> codes(d), negative(d), record;
  std::vector<float> residual(d), squares(d), projected(d);
  float amax = 0;
  for (const float v : y) amax = std::max(amax, std::fabs(v));
  if (s == 0) amax = 0;
  const float worth = grid ? amax / 63.0f : levels.step * s;
  for (size_t c = 0; c < d && amax > 0; ++c) {
    size_t code = 0;
    if (grid) {
      code = static_cast<size_t>(static_cast<int>(std::nearbyint(y[c] * (63.0f / amax))) + 63);
    } else {
      while (code + 1 < count) {
        const float sum = static_cast<float>(levels.level[code] + levels.level[code + 1]);
        if (!(y[c] > levels.step * sum / 2.0f * s)) break;
        ++code;
      }
    }
    codes[c] = static_cast<uint8_t>(code);
    residual[c] = y[c] - static_cast<float>(levels.level[code]) * worth;
    squares[c] = residual[c] * residual[c];
  }
  const float left = std::sqrt(PlainTreeSum(squares));
  if (!signs.empty()) {
    for (size_t c = 0; c < d; ++c) projected[c] = residual[c] * signs[c];
    PlainHadamard(projected.data(), static_cast<int>(d));
  } else {
    for (size_t r = 0; r < d; ++r) {
      projected[r] = gaussian[r * d] * residual[0];
      for (size_t c = 1; c < d; ++c) projected[r] = projected[r] + gaussian[r * d + c] * residual[c];
    }
  }
  for (size_t c = 0; c < d; ++c) negative[c] = projected[c] < 0 ? 1 : 0;
  AppendCodes(codes, bits - 1, &record);
  AppendCodes(negative, 1, &record);
  const float gamma = amax == 0 ? 0 : left / (grid ? amax : s * sqrt_d);
  AppendHalf(F32ToF16(std::min(amax == 0 ? 0 : grid ? amax / sqrt_d : s, 65504.0f)), &record);
  AppendHalf(F32ToF16(std::min(gamma, 65504.0f)), &record);
  return record;
}

}  // namespace tersekv::reference
