// SPDX-License-Identifier: Apache-2.0
// Rows <-> prod records. No include guard: compiled once per SIMD target, into the namespace that the includer names in
// TERSEKV_INL_NAMESPACE; the includer has included <cstring>, half.h, lanes.h, row_codes.h, prod.h and, into the same
// namespace, encode-inl.h (LloydMaxQuantise, TreeSum, RotateForward). d is at most 1024.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

inline uint16_t ProdF16(float v) { return F32ToF16(v < 65504.0f ? v : 65504.0f); }  // v >= 0; saturates

// record: Prod::Bytes. A row of norm 0 is all zeros.
inline void EncodeRecord(Prod, const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  const size_t d = static_cast<size_t>(shape.d);
  const LevelTable& table = ProdLevels(static_cast<int>(shape.bits));
  float* level = reinterpret_cast<float*>(row.scratch);
  float* residual = level + d;
  float* projected = residual + d;
  float* sums = projected + d;
  uint8_t* code = reinterpret_cast<uint8_t*>(sums + 32);
  const float* y = row.y;
  float peak = 0;
  for (size_t c = 0; c < d; ++c) {
    const float magnitude = y[c] < 0.0f ? -y[c] : y[c];
    peak = magnitude > peak ? magnitude : peak;
  }
  if (row.s == 0.0f || peak == 0.0f) {
    std::memset(record, 0, Prod::Bytes(shape));
    return;
  }
  const ScalarLanes lanes;
  for (size_t c = 0; c < d; ++c) level[c] = y[c];
  LloydMaxQuantise(lanes, table, level, shape.d, row.s, projected, &peak);
  for (size_t c = 0; c < d; ++c) code[c] = static_cast<uint8_t>(projected[c]);
  const float worth = table.grid != 0 ? peak / static_cast<float>(table.grid) : table.step * row.s;  // of a level in y
  for (size_t c = 0; c < d; ++c) residual[c] = y[c] - level[c] * worth;
  const float left = lanes.Sqrt(TreeSum(lanes, shape.d, sums, [&](size_t c) { return residual[c] * residual[c]; }));
  // In units of the stored norm: y is sqrt(d) times as long as x'.
  const uint16_t norm = ProdF16(table.grid != 0 ? peak / row.sqrt_d : row.s);
  const uint16_t gamma = ProdF16(left / (table.grid != 0 ? peak : row.s * row.sqrt_d));
  if (shape.bits > 1) {
    WithBits(static_cast<int>(shape.bits) - 1, [&](auto bits) { PackRow<decltype(bits)::value>(code, d, record); });
  }
  RotateForward(lanes, *shape.projection, residual, projected);
  for (size_t c = 0; c < d; ++c) code[c] = residual[c] < 0.0f ? 1 : 0;
  uint8_t* signs = record + Prod::IndexBytes(shape);
  PackRow<1>(code, d, signs);
  std::memcpy(signs + d / 8, &norm, 2);
  std::memcpy(signs + d / 8 + 2, &gamma, 2);
}

// z: [d], becomes S^T z; S is one of ProjectionKindOf. scratch: [d].
inline void ProdProjectBack(const RotationOp& op, float* z, float* scratch) {
  const size_t d = static_cast<size_t>(op.d());
  if (op.kind() == RotationKind::kHadamard) {
    Hadamard(ScalarLanes(), z, op.d(), true);
    for (size_t c = 0; c < d; ++c) z[c] *= op.signs()[c];
    return;
  }
  using Eight = float __attribute__((vector_size(32)));  // a Gaussian S
  for (size_t c = 0; c < d; ++c) {
    const float* column = op.matrix() + c * d;
    Eight sum = {};
    for (size_t r = 0; r < d; r += 8) {
      Eight a, b;
      std::memcpy(&a, column + r, sizeof(a));
      std::memcpy(&b, z + r, sizeof(b));
      sum += a * b;
    }
    scratch[c] = ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
  }
  std::memcpy(z, scratch, d * sizeof(float));
}

// y: [d]
inline void DecodeRecord(Prod, const RecordShape& shape, const uint8_t* record, float* y) {
  const size_t d = static_cast<size_t>(shape.d);
  const LevelTable& table = ProdLevels(static_cast<int>(shape.bits));
  const uint8_t* signs = record + Prod::IndexBytes(shape);
  uint16_t norm, gamma;
  std::memcpy(&norm, signs + d / 8, 2);
  std::memcpy(&gamma, signs + d / 8 + 2, 2);
  float z[1024];
  uint8_t code[1024] = {};
  UnpackRow<1>(signs, d, z);
  for (size_t c = 0; c < d; ++c) z[c] = 1.0f - 2.0f * z[c];
  ProdProjectBack(*shape.projection, z, y);
  if (shape.bits > 1) {
    WithBits(static_cast<int>(shape.bits) - 1, [&](auto bits) { UnpackRow<decltype(bits)::value>(record, d, code); });
  }
  const float n = F16ToF32(norm);
  const float worth =
      table.grid != 0 ? n / static_cast<float>(table.grid) : n * table.step / shape.projection->sqrt_d();
  const float factor = n * F16ToF32(gamma) * ProdFactor(shape.projection->kind(), shape.d);
  for (size_t c = 0; c < d; ++c) y[c] = worth * static_cast<float>(table.level[code[c]]) + factor * z[c];
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
