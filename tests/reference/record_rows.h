// SPDX-License-Identifier: Apache-2.0
// Rows through a token record codec (src/codec/record.h), and what they lose. Codecs are compiled into a namespace of
// the includer's, so it hands over its EncodeRecord or DecodeRecord.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/codec/list.h"
#include "src/codec/record.h"
#include "tests/reference/rows.h"

namespace tersekv::reference {

inline RecordShape ShapeOf(int d) {
  RecordShape shape;
  shape.d = d;
  return shape;
}

// rows: [n, d] -> records, which start as 0xee. encode(tag, shape, row, record).
template <class Tag, class Encode>
std::vector<uint8_t> EncodeRows(Tag tag, const std::vector<float>& rows, int d, Encode&& encode) {
  const RecordShape shape = ShapeOf(d);
  const size_t n = rows.size() / static_cast<size_t>(d), bytes = Tag::Bytes(shape);
  std::vector<uint8_t> records(n * bytes, 0xee);
  for (size_t i = 0; i < n; ++i) {
    RecordRow row;
    row.y = rows.data() + i * static_cast<size_t>(d);
    encode(tag, shape, row, records.data() + i * bytes);
  }
  return records;
}

// decode(tag, shape, record, y).
template <class Tag, class Decode>
std::vector<float> DecodeRows(Tag tag, const std::vector<uint8_t>& records, int d, Decode&& decode) {
  const RecordShape shape = ShapeOf(d);
  const size_t bytes = Tag::Bytes(shape), n = records.size() / bytes;
  std::vector<float> rows(n * static_cast<size_t>(d), -1e30f);
  for (size_t i = 0; i < n; ++i) decode(tag, shape, &records[i * bytes], &rows[i * static_cast<size_t>(d)]);
  return rows;
}

// Sum of squared errors over sum of squares.
inline double Nmse(const std::vector<float>& rows, const std::vector<float>& back) {
  double error = 0, power = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double x = static_cast<double>(rows[i]), difference = x - static_cast<double>(back[i]);
    error += difference * difference;
    power += x * x;
  }
  return error / power;
}

// Bytes of a record as the formats are published.
inline double ListedBytes(Family family, int d) {
  switch (family) {
    case Family::kFp8:
      return d + 4;
    case Family::kFp8Head:
    case Family::kFp8Tensor:
      return d;
    case Family::kMxfp4:
      return d * 4.25 / 8;
    case Family::kQ8_0:
      return d * 8.5 / 8;
    case Family::kQ5_0:
      return d * 5.5 / 8;
    default:
      return d * 4.5 / 8;  // NVFP4, Q4_0, IQ4_NL
  }
}

// FNV-1a, for golden records.
inline uint64_t HashOf(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

// Bell-shaped rows from integers alone: sums of four, no function of the C library.
inline std::vector<float> IntegerRows(uint64_t seed, size_t n, int d) {
  Random random(seed);
  std::vector<float> rows(n * static_cast<size_t>(d));
  for (float& v : rows) {
    const uint64_t bits = random.Next();
    const int64_t sum =
        static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) - 131070;
    v = static_cast<float>(sum) * 0x1p-15f;
  }
  return rows;
}

}  // namespace tersekv::reference
