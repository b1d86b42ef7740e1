// SPDX-License-Identifier: Apache-2.0
// What caches may share (CacheMemory of tersekv/cache.h): the page pool, and scratch of the running step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/aligned.h"
#include "src/cache/page_pool.h"

namespace tersekv {

struct EncodeScratch {
  struct Sizes {
    size_t rows = 0, encode = 0, codes = 0, scales = 0, page_mean = 0;
  };
  std::vector<float> rows, encode;  // a page of rows; what the encoder asks for
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<float> page_mean;  // [head_dim]
  void Reserve(const Sizes& sizes) {
    if (rows.size() < sizes.rows) rows.resize(sizes.rows);
    if (encode.size() < sizes.encode) encode.resize(sizes.encode);
    if (codes.size() < sizes.codes) codes.resize(sizes.codes);
    if (scales.size() < sizes.scales) scales.resize(sizes.scales);
    if (page_mean.size() < sizes.page_mean) page_mean.resize(sizes.page_mean);
  }
  size_t bytes() const {
    return sizeof(float) * (rows.capacity() + encode.capacity() + page_mean.capacity()) + codes.capacity() +
           sizeof(uint16_t) * scales.capacity();
  }
};

// f16 rows of the running step of one layer and side.
struct StepRows {
  AlignedArray<uint16_t> values;
  size_t capacity = 0;
  void Reserve(size_t wanted) {
    if (wanted <= capacity) return;
    values = MakeAligned<uint16_t>(wanted);
    capacity = wanted;
  }
};

class CacheMemory {
 public:
  explicit CacheMemory(size_t budget) : pool(budget) {}
  virtual ~CacheMemory() = default;
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;

  // Of attention, which this room does not know.
  virtual size_t AttendBytes() const = 0;
  virtual void ReleaseAttend() = 0;

  void ReleaseScratch() {
    step.clear();
    workers.clear();
    ReleaseAttend();
  }

  size_t ScratchBytes() const {
    size_t bytes = AttendBytes();
    for (const auto& sides : step) {
      for (const StepRows& rows : sides) bytes += rows.capacity * sizeof(uint16_t);
    }
    for (const EncodeScratch& worker : workers) bytes += worker.bytes();
    return bytes;
  }

  PagePool pool;
  std::vector<std::array<StepRows, 2>> step;  // by layer of a cache, side
  std::vector<EncodeScratch> workers;
};

}  // namespace tersekv
