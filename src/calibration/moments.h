// SPDX-License-Identifier: Apache-2.0
// Mean and variance of rows as they come, in fp64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersekv {

// Welford's recurrence a channel; Merge after Chan, Golub and LeVeque (1979). No sum of squares: keys with a mean of
// hundreds and a deviation of one keep their digits.
class Moments {
 public:
  explicit Moments(int channels) : mean_(static_cast<size_t>(channels)), m2_(static_cast<size_t>(channels)) {}

  void Add(const float* row);  // [channels]
  void Merge(const Moments& other);

  int64_t count() const { return count_; }
  const std::vector<double>& mean() const { return mean_; }
  double variance(size_t channel) const {  // of the rows seen, not of a population
    return count_ > 0 ? m2_[channel] / static_cast<double>(count_) : 0;
  }

 private:
  int64_t count_ = 0;
  std::vector<double> mean_, m2_;
};

}  // namespace tersekv
