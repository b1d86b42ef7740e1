// SPDX-License-Identifier: Apache-2.0
// Rows of arrays that belong to somebody else: address, byte strides, dtype. No torch, no numpy.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/half.h"
#include "tersekv/status.h"

namespace tersekv::python {

enum class DType : int { kF32 = 0, kF16 = 1, kBF16 = 2 };

// values of one row, neighbours in memory -> fp32
inline void LoadRow(const char* from, DType dtype, size_t n, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, from + 2 * i, 2);
    to[i] = dtype == DType::kF16 ? F16ToF32(half) : BF16ToF32(half);
  }
}

inline void StoreRow(const float* from, DType dtype, size_t n, char* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint16_t half = dtype == DType::kF16 ? F32ToF16(from[i]) : F32ToBF16(from[i]);
    std::memcpy(to + 2 * i, &half, 2);
  }
}

// Up to four leading dimensions of any strides; the last dimension of the array is the row and lies together.
class RowArray {
 public:
  // address of the first value, sizes and byte strides of the leading dimensions.
  static Result<RowArray> Make(uintptr_t address, int dtype, const std::vector<int64_t>& sizes,
                               const std::vector<int64_t>& strides) {
    if (sizes.size() > 4 || sizes.size() != strides.size()) {
      return InvalidArgument("an array has at most four leading dimensions and a stride for each");
    }
    if (dtype < 0 || dtype > 2) return InvalidArgument("dtype is none of float32, float16, bfloat16");
    RowArray a;
    a.data_ = reinterpret_cast<char*>(address);  // NOLINT(performance-no-int-to-ptr)
    a.dtype_ = static_cast<DType>(dtype);
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] < 0) return InvalidArgument("a size is negative");
      a.rows_ *= static_cast<size_t>(sizes[i]);
      a.sizes_[4 - sizes.size() + i] = static_cast<size_t>(sizes[i]);
      a.strides_[4 - sizes.size() + i] = strides[i];
    }
    if (a.data_ == nullptr && a.rows_ > 0) return InvalidArgument("the array has no memory (address 0)");
    return a;
  }

  size_t rows() const { return rows_; }
  DType dtype() const { return dtype_; }
  char* Row(size_t row) const {
    ptrdiff_t at = 0;
    for (size_t i = 4; i-- > 0;) {
      at += static_cast<ptrdiff_t>(row % sizes_[i]) * strides_[i];
      row /= sizes_[i];
    }
    return data_ + at;
  }

 private:
  char* data_ = nullptr;
  DType dtype_ = DType::kF32;
  size_t rows_ = 1;
  std::array<size_t, 4> sizes_ = {1, 1, 1, 1};
  std::array<int64_t, 4> strides_ = {0, 0, 0, 0};
};

}  // namespace tersekv::python
