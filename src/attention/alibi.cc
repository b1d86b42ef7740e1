// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tersekv/attention.h"

namespace tersekv {

float AlibiSlope(int head, int heads, float max_bias) {
  const int power = 1 << static_cast<int>(std::floor(std::log2(static_cast<double>(heads))));  // largest 2^n <= heads
  const float m0 = std::pow(2.0f, -max_bias / static_cast<float>(power));
  const float m1 = std::pow(2.0f, -max_bias / 2.0f / static_cast<float>(power));
  return head < power ? std::pow(m0, static_cast<float>(head + 1))
                      : std::pow(m1, static_cast<float>(2 * (head - power) + 1));
}

}  // namespace tersekv
