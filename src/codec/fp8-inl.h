// SPDX-License-Identifier: Apache-2.0
// Records of fp8.h. No include guard: compiled once per SIMD target, into the namespace that the includer names in
// TERSEKV_INL_NAMESPACE; the includer has included abs_max.h, fp8.h and <cstring>.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

inline void EncodeRecord(Fp8, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  const int d = shape.d;
  const float* y = row.y;
  const float scale = AbsMax(y, d) / kE4M3Max;
  const float divisor = scale > 0 ? scale : 1.0f;
  const int keep = scale > 0 ? 0xff : 0;
  for (int c = 0; c < d; ++c) record[c] = static_cast<uint8_t>(F32ToE4M3(y[c] / divisor) & keep);
  std::memcpy(record + d, &scale, sizeof(scale));
}

inline void DecodeRecord(Fp8, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  const int d = shape.d;
  float scale;
  std::memcpy(&scale, record + d, sizeof(scale));
  for (int c = 0; c < d; ++c) y[c] = E4M3ToF32(record[c]) * scale;
}

template <Family family>
void EncodeRecord(Fp8Codes<family>, const RecordShape& shape, const RecordRow& row, uint8_t* __restrict record) {
  const float* y = row.y;
  for (int c = 0; c < shape.d; ++c) record[c] = static_cast<uint8_t>(F32ToE4M3(y[c]));
}

template <Family family>
void DecodeRecord(Fp8Codes<family>, const RecordShape& shape, const uint8_t* record, float* __restrict y) {
  for (int c = 0; c < shape.d; ++c) y[c] = E4M3ToF32(record[c]);
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
