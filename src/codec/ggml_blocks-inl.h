// SPDX-License-Identifier: Apache-2.0
// Records of ggml_blocks.h. No include guard: compiled once per SIMD target, into the namespace that the includer names
// in TERSEKV_INL_NAMESPACE; the includer has included abs_max.h, ggml_blocks.h, half.h, <algorithm>, <cmath> and
// <cstring>.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// The first of 32 values whose magnitude is the largest; +0 when all are zeros of either sign.
inline float Extreme(const float* y) {
  const float largest = AbsMax(y, 32);
  float extreme = 0;
  for (int c = 31; c >= 0; --c) extreme = std::fabs(y[c]) == largest ? y[c] : extreme;
  return largest > 0 ? extreme : 0.0f;
}

inline void StoreGgmlScale(float g, uint8_t* block) {
  const uint16_t half = std::isnan(g) ? 0xfe00 : F32ToF16(g);  // the NaN of an x86 processor
  std::memcpy(block, &half, sizeof(half));
}

inline float LoadGgmlScale(const uint8_t* block) {
  uint16_t half;
  std::memcpy(&half, block, sizeof(half));
  return F16ToF32(half);
}

// code: [32] -> packed: [16], channels i and i + 16 in a byte.
inline void PackHalves(const uint8_t* code, uint8_t* __restrict packed) {
  for (int i = 0; i < 16; ++i) packed[i] = static_cast<uint8_t>((code[i] & 15) | code[i + 16] << 4);
}

// 1 / g; 0 for 0. False: it overflows (|g| < 2^-128), and all codes of the block are 0.
inline bool InverseOfScale(float g, float* inverse) {
  *inverse = g != 0 ? 1.0f / g : 0.0f;
  return !std::isinf(*inverse);
}

// Scale and codes 0..2*kZero - 1 of a block whose code kZero decodes to 0. code: [32].
template <int kZero>
float QuantiseOffset(const float* y, uint8_t* __restrict code) {
  const float g = Extreme(y) / static_cast<float>(-kZero);
  float inverse;
  if (!InverseOfScale(g, &inverse)) {
    std::memset(code, 0, 32);
    return g;
  }
  constexpr float kRound = static_cast<float>(kZero) + 0.5f;
  for (int c = 0; c < 32; ++c) {
    code[c] = static_cast<uint8_t>(std::min(static_cast<int>(y[c] * inverse + kRound), 2 * kZero - 1));
  }
  return g;
}

inline void EncodeRecord(Q8_0, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  for (int b = 0; b < shape.d / 32; ++b, record += Q8_0::kBlockBytes) {
    const float* y = row.y + b * 32;
    const float g = AbsMax(y, 32) / 127.0f;
    float inverse;
    if (!InverseOfScale(g, &inverse)) inverse = 0;
    StoreGgmlScale(g, record);
    for (int c = 0; c < 32; ++c) {  // half away from zero
      const float v = y[c] * inverse, magnitude = std::fabs(v);
      const int whole = static_cast<int>(magnitude);
      const int rounded = whole + static_cast<int>(magnitude - static_cast<float>(whole) >= 0.5f);
      record[2 + c] = static_cast<uint8_t>(v < 0 ? -rounded : rounded);
    }
  }
}

inline void DecodeRecord(Q8_0, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  for (int b = 0; b < shape.d / 32; ++b, record += Q8_0::kBlockBytes, y += 32) {
    const float g = LoadGgmlScale(record);
    for (int c = 0; c < 32; ++c) y[c] = static_cast<float>(static_cast<int8_t>(record[2 + c])) * g;
  }
}

inline void EncodeRecord(Q5_0, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  for (int b = 0; b < shape.d / 32; ++b, record += Q5_0::kBlockBytes) {
    uint8_t code[32];
    StoreGgmlScale(QuantiseOffset<16>(row.y + b * 32, code), record);
    uint32_t fifth = 0;
    for (int c = 0; c < 32; ++c) fifth |= (static_cast<uint32_t>(code[c]) >> 4) << c;
    std::memcpy(record + 2, &fifth, sizeof(fifth));
    PackHalves(code, record + 6);
  }
}

inline void DecodeRecord(Q5_0, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  for (int b = 0; b < shape.d / 32; ++b, record += Q5_0::kBlockBytes, y += 32) {
    const float g = LoadGgmlScale(record);
    const uint8_t* packed = record + 6;
    uint32_t fifth;
    std::memcpy(&fifth, record + 2, sizeof(fifth));
    for (int i = 0; i < 16; ++i) {
      const int low = (packed[i] & 15) | static_cast<int>(fifth >> i & 1u) << 4;
      const int high = packed[i] >> 4 | static_cast<int>(fifth >> (i + 16) & 1u) << 4;
      y[i] = static_cast<float>(low - 16) * g;
      y[i + 16] = static_cast<float>(high - 16) * g;
    }
  }
}

inline void EncodeRecord(Q4_0, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  for (int b = 0; b < shape.d / 32; ++b, record += Q4_0::kBlockBytes) {
    uint8_t code[32];
    StoreGgmlScale(QuantiseOffset<8>(row.y + b * 32, code), record);
    PackHalves(code, record + 2);
  }
}

inline void DecodeRecord(Q4_0, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  for (int b = 0; b < shape.d / 32; ++b, record += Q4_0::kBlockBytes, y += 32) {
    const float g = LoadGgmlScale(record);
    for (int i = 0; i < 16; ++i) {
      y[i] = static_cast<float>((record[2 + i] & 15) - 8) * g;
      y[i + 16] = static_cast<float>((record[2 + i] >> 4) - 8) * g;
    }
  }
}

// v is at or above the midpoint of levels k and k + 1. A NaN is.
inline bool AboveIq4NlMidpoint(float v, size_t k) {
  return !(v < static_cast<float>(kIq4NlLevels[k] + kIq4NlLevels[k + 1]) * 0.5f);
}

// The scale of one block. Each of 16 tries maps the block onto the levels with some inverse scale: max|y| / 127, then
// the extreme value onto -134, -133, ..., -120. Its scale is the least-squares one for errors weighted by y^2, and a
// later try wins when it explains strictly more. All in fp32, sums in channel order; tries are the lanes.
inline float SearchIq4NlScale(const float* y) {
  constexpr int kTries = 16, kReach = 7;
  const float extreme = Extreme(y);
  if (std::fabs(extreme) < 1e-15f) return 0;
  constexpr float kFirst = static_cast<float>(kIq4NlLevels[0]);
  float inverse[kTries], cross[kTries] = {}, power[kTries] = {};
  inverse[0] = 1.0f / (-extreme / kFirst);
  for (int t = 1; t < kTries; ++t) inverse[t] = (static_cast<float>(t - 1 - kReach) + kFirst) / extreme;
  for (int c = 0; c < 32; ++c) {
    const float v = y[c], weight = v * v;
    for (int t = 0; t < kTries; ++t) {
      const float scaled = v * inverse[t];
      float level = kFirst;
      for (size_t k = 0; k < 15; ++k) {
        level += AboveIq4NlMidpoint(scaled, k) ? static_cast<float>(kIq4NlLevels[k + 1] - kIq4NlLevels[k]) : 0.0f;
      }
      const float weighted = weight * level;
      cross[t] += weighted * v;
      power[t] += weighted * level;
    }
  }
  float g = cross[0] / power[0], best = g * cross[0];
  for (int t = 1; t < kTries; ++t) {
    if (power[t] > 0 && cross[t] * cross[t] > best * power[t]) {
      g = cross[t] / power[t];
      best = g * cross[t];
    }
  }
  return g;
}

inline void EncodeRecord(Iq4Nl, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  for (int b = 0; b < shape.d / 32; ++b, record += Iq4Nl::kBlockBytes) {
    const float* y = row.y + b * 32;
    const float g = SearchIq4NlScale(y);
    const float inverse = g != 0 ? 1.0f / g : 0.0f;
    uint8_t code[32];
    for (int c = 0; c < 32; ++c) {
      const float scaled = y[c] * inverse;
      int index = 0;
      for (size_t k = 0; k < 15; ++k) index += static_cast<int>(AboveIq4NlMidpoint(scaled, k));
      code[c] = static_cast<uint8_t>(index);
    }
    StoreGgmlScale(g, record);
    PackHalves(code, record + 2);
  }
}

inline void DecodeRecord(Iq4Nl, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  for (int b = 0; b < shape.d / 32; ++b, record += Iq4Nl::kBlockBytes, y += 32) {
    const float g = LoadGgmlScale(record);
    for (int i = 0; i < 16; ++i) {
      y[i] = static_cast<float>(kIq4NlLevels[record[2 + i] & 15]) * g;
      y[i + 16] = static_cast<float>(kIq4NlLevels[record[2 + i] >> 4]) * g;
    }
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
