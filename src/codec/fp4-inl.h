// SPDX-License-Identifier: Apache-2.0
// Records of fp4.h. No include guard: compiled once per SIMD target, into the namespace that the includer names in
// TERSEKV_INL_NAMESPACE; the includer has included abs_max.h and fp4.h.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// code: [n] -> packed: [n / 2].
inline void PackFp4(const uint8_t* code, int n, uint8_t* __restrict packed) {
  for (int i = 0; i < n / 2; ++i) packed[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
}

// packed: [n / 2] -> y: [n], without scales.
inline void UnpackFp4(const uint8_t* packed, int n, float* __restrict y) {
  for (int i = 0; i < n / 2; ++i) {
    y[2 * i] = E2M1ToF32(packed[i]);
    y[2 * i + 1] = E2M1ToF32(static_cast<uint8_t>(packed[i] >> 4));
  }
}

inline void EncodeRecord(Mxfp4, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  constexpr int kBlock = Mxfp4::kBlock;
  uint8_t* scales = record + shape.d / 2;
  for (int b = 0; b < shape.d / kBlock; ++b) {
    const float* y = row.y + b * kBlock;
    const uint8_t scale = E8M0FromExponent(FloorLog2(AbsMax(y, kBlock)) - 2);  // at most 2^125
    const float inverse = E8M0ToF32(static_cast<uint8_t>(254 - scale));
    uint8_t code[kBlock];
    for (int c = 0; c < kBlock; ++c) code[c] = F32ToE2M1(y[c] * inverse);
    PackFp4(code, kBlock, record + b * kBlock / 2);
    scales[b] = scale;
  }
}

inline void DecodeRecord(Mxfp4, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  constexpr int kBlock = Mxfp4::kBlock;
  const uint8_t* scales = record + shape.d / 2;
  UnpackFp4(record, shape.d, y);
  for (int b = 0; b < shape.d / kBlock; ++b) {
    const float scale = E8M0ToF32(scales[b]);
    for (int c = 0; c < kBlock; ++c) y[b * kBlock + c] *= scale;
  }
}

// Codes of one block under an E4M3 scale, and the sum of their squared errors: a tree of 8, 4, 2, 1.
inline float TryNvfp4(const float* y, uint8_t e4m3, uint8_t* __restrict code) {
  constexpr int kBlock = Nvfp4::kBlock;
  const float scale = E4M3ToF32(e4m3);
  const float divisor = scale > 0 ? scale : 1.0f;  // a scale of 0 means values below 6 * 2^-10: codes 0
  float error[kBlock];
  for (int c = 0; c < kBlock; ++c) {
    code[c] = F32ToE2M1(y[c] / divisor);
    const float difference = y[c] - E2M1ToF32(code[c]) * scale;
    error[c] = difference * difference;
  }
  for (int c = 0; c < 8; ++c) error[c] += error[c + 8];
  for (int c = 0; c < 4; ++c) error[c] += error[c + 4];
  return (error[0] + error[2]) + (error[1] + error[3]);
}

inline void EncodeRecord(Nvfp4, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  constexpr int kBlock = Nvfp4::kBlock;
  uint8_t* scales = record + shape.d / 2;
  for (int b = 0; b < shape.d / kBlock; ++b) {
    const float* y = row.y + b * kBlock;
    const float largest = AbsMax(y, kBlock);
    const uint8_t sixth = F32ToE4M3(largest / 6.0f), quarter = F32ToE4M3(largest / 4.0f);
    uint8_t code6[kBlock], code4[kBlock];
    const bool other = TryNvfp4(y, quarter, code4) < TryNvfp4(y, sixth, code6);
    PackFp4(other ? code4 : code6, kBlock, record + b * kBlock / 2);
    scales[b] = other ? quarter : sixth;
  }
}

inline void DecodeRecord(Nvfp4, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  constexpr int kBlock = Nvfp4::kBlock;
  const uint8_t* scales = record + shape.d / 2;
  UnpackFp4(record, shape.d, y);
  for (int b = 0; b < shape.d / kBlock; ++b) {
    const float scale = E4M3ToF32(scales[b]);
    for (int c = 0; c < kBlock; ++c) y[b * kBlock + c] *= scale;
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
