// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same with every compiler and standard library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

namespace tersekv::reference {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {  // SplitMix64
    uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  size_t Below(size_t n) { return static_cast<size_t>(Next() % n); }
  double Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double Gaussian() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(Uniform()));
    const double angle = 2.0 * std::numbers::pi * Uniform();
    has_spare_ = true;
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

inline std::vector<float> GaussianRows(uint64_t seed, size_t n, int d) {
  Random random(seed);
  std::vector<float> rows(n * static_cast<size_t>(d));
  for (float& v : rows) v = static_cast<float>(random.Gaussian());
  return rows;
}

}  // namespace tersekv::reference
