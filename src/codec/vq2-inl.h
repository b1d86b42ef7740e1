// SPDX-License-Identifier: Apache-2.0
// Search and reading of vq2.h. No include guard: compiled once per SIMD target and plainly, into the namespace that the
// includer names in TERSEKV_INL_NAMESPACE; the includer has included vq2.h, pack.h and, into the same namespace,
// integer_levels-inl.h. All of the search is integers, so every target finds the same indices.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// The nearest entry of each pair; the lowest index wins a tie. z: [2 * pairs] inputs; best: [pairs], overwritten;
// index: [pairs].
inline void Vq2Search(const Vq2Table& vq, const int16_t* __restrict z, int pairs, int32_t* __restrict best,
                      uint8_t* __restrict index) {
  // A key is the squared distance above the index.
  for (int p = 0; p < pairs; ++p) best[p] = INT32_MAX;
  for (int e = 0; e < vq.table.count; ++e) {
    const int32_t first = vq.levels[2 * e] * kMetricUnits, second = vq.levels[2 * e + 1] * kMetricUnits;
    for (int p = 0; p < pairs; ++p) {
      const int32_t a = z[2 * p] - first, b = z[2 * p + 1] - second;
      const int32_t key = (a * a + b * b) * 256 + e;
      best[p] = key < best[p] ? key : best[p];
    }
  }
  for (int p = 0; p < pairs; ++p) index[p] = static_cast<uint8_t>(best[p] & 255);
}

inline void EncodeRecord(Vq2, const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  const size_t bytes = Vq2::Bytes(shape);
  if (row.s == 0.0f) {
    for (size_t i = 0; i < bytes; ++i) record[i] = 0;
    return;
  }
  const Vq2Table& vq = Vq2TableOf(shape);
  const int pairs = shape.d / 2;
  int32_t* best = reinterpret_cast<int32_t*>(row.scratch);
  int16_t* z = reinterpret_cast<int16_t*>(best + pairs);
  uint8_t* index = reinterpret_cast<uint8_t*>(z + shape.d);
  int8_t* levels = reinterpret_cast<int8_t*>(index + pairs);
  MetricInputs(row, shape.d, vq.table.step, z);
  Vq2Search(vq, z, pairs, best, index);
  for (int p = 0; p < pairs; ++p) {
    levels[2 * p] = vq.levels[2 * index[p]];
    levels[2 * p + 1] = vq.levels[2 * index[p] + 1];
  }
  PackBits(index, static_cast<size_t>(pairs), vq.table.bits, record);
  StoreScale(LevelScale(vq.table, shape, row, levels), record + bytes - 2);
}

inline void DecodeRecord(Vq2, const RecordShape& shape, const uint8_t* record, float* y) {
  const Vq2Table& vq = Vq2TableOf(shape);
  const float scale = LoadScale(record + Vq2::Bytes(shape) - 2);
  for (int p = 0; p < shape.d / 2; ++p) {
    const int bit = p * vq.table.bits;
    const int two = record[bit / 8] | record[bit / 8 + 1] << 8;  // the scale follows the last byte
    const int8_t* entry = vq.levels + 2 * (two >> (bit % 8) & (vq.table.count - 1));
    y[2 * p] = static_cast<float>(entry[0]) * scale;
    y[2 * p + 1] = static_cast<float>(entry[1]) * scale;
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
