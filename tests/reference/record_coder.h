// SPDX-License-Identifier: Apache-2.0
// Rows as record codecs get them, and errors of what they give back, for tests. Unrotated: R is the identity.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/codec/record.h"

namespace tersekv::reference {

// Functions of one tag, bound to one shape.
template <class Encode, class Decode>
class RecordCoder {
 public:
  RecordCoder(const RecordShape& shape, size_t bytes, size_t scratch, Encode encode, Decode decode)
      : shape_(shape), bytes_(bytes), scratch_(scratch / sizeof(Line) + 1), encode_(encode), decode_(decode) {}

  std::vector<uint8_t> Code(const float* x) {
    const size_t d = static_cast<size_t>(shape_.d);
    const float sqrt_d = std::sqrt(static_cast<float>(shape_.d));
    std::vector<float> y(d);
    float sums[32] = {};
    for (size_t c = 0; c < d; ++c) {
      y[c] = x[c] * sqrt_d;
      sums[c % 32] += x[c] * x[c];
    }
    for (size_t half = 16; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    std::vector<uint8_t> record(bytes_, 0xee);
    encode_(shape_, {y.data(), sums[0], std::sqrt(sums[0]), sqrt_d, reinterpret_cast<std::byte*>(scratch_.data())},
            record.data());
    return record;
  }
  std::vector<float> Read(const std::vector<uint8_t>& record) const {
    std::vector<float> y(static_cast<size_t>(shape_.d));
    decode_(shape_, record.data(), y.data());
    return y;
  }
  size_t bytes() const { return bytes_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  RecordShape shape_;
  size_t bytes_;
  std::vector<Line> scratch_;
  Encode encode_;
  Decode decode_;
};

inline double RowDot(const float* a, const float* b, size_t d) {
  double sum = 0;
  for (size_t c = 0; c < d; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

// |x - factor * back|^2 / |x|^2
inline double RowError(const float* x, const float* back, size_t d, double factor = 1) {
  double error = 0;
  for (size_t c = 0; c < d; ++c) {
    const double difference = static_cast<double>(x[c]) - factor * static_cast<double>(back[c]);
    error += difference * difference;
  }
  return error / RowDot(x, x, d);
}

// Mean of RowError over rows [n, d].
template <class Coder>
double MeanError(Coder& coder, const std::vector<float>& rows, size_t d) {
  double sum = 0;
  for (size_t at = 0; at < rows.size(); at += d)
    sum += RowError(&rows[at], coder.Read(coder.Code(&rows[at])).data(), d);
  return sum * static_cast<double>(d) / static_cast<double>(rows.size());
}

// What the norm modes promise, on Gaussian rows of norms over twelve powers of two. Make: NormMode -> coder.
struct NormPromises {
  double unbiased_mean = 0, unbiased_worst = 0;  // of <x, back> / <x, x>, the worst as distance from 1
  double match_worst = 0;                        // of |back| / |x|, as distance from 1
  int ls_beaten = 0;                             // rows that a scale 1% away would have served better
};
template <class Make>
NormPromises MeasureNorms(const Make& make, const std::vector<float>& rows, size_t d) {
  auto unbiased = make(NormMode::kUnbiased), match = make(NormMode::kMatch), ls = make(NormMode::kLs);
  NormPromises found;
  const size_t n = rows.size() / d;
  for (size_t i = 0; i < n; ++i) {
    std::vector<float> row(&rows[i * d], &rows[i * d] + d);
    for (float& v : row) v *= static_cast<float>(std::exp2(12.0 * static_cast<double>(i) / static_cast<double>(n) - 6));
    const float* x = row.data();
    const auto a = unbiased.Read(unbiased.Code(x)), b = match.Read(match.Code(x)), c = ls.Read(ls.Code(x));
    const double ratio = RowDot(x, a.data(), d) / RowDot(x, x, d);
    found.unbiased_mean += ratio / static_cast<double>(n);
    found.unbiased_worst = std::max(found.unbiased_worst, std::fabs(ratio - 1));
    const double norm = std::sqrt(RowDot(b.data(), b.data(), d) / RowDot(x, x, d));
    found.match_worst = std::max(found.match_worst, std::fabs(norm - 1));
    const double best = RowError(x, c.data(), d);
    found.ls_beaten += RowError(x, c.data(), d, 0.99) < best || RowError(x, c.data(), d, 1.01) < best ? 1 : 0;
  }
  return found;
}

}  // namespace tersekv::reference
