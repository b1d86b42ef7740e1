// SPDX-License-Identifier: Apache-2.0
// Lanes: the arithmetic that codec mathematics is written in, once. A lane is one vector (one token's row); a lane
// group is one channel of Count() vectors. ScalarLanes is the plain definition; src/cpu wraps Highway the same way.
// Every operation is one IEEE operation, rounded separately: nothing may be contracted.
#pragma once

#include <cmath>
#include <cstddef>

namespace tersekv {

struct ScalarLanes {
  using F = float;
  using M = bool;
  static constexpr size_t Count() { return 1; }
  static F Load(const float* p) { return *p; }
  static void Store(F v, float* p) { *p = v; }
  static F Set(float v) { return v; }
  static F Add(F a, F b) { return a + b; }
  static F Sub(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
  static F Div(F a, F b) { return a / b; }
  static F Sqrt(F a) { return std::sqrt(a); }
  static F Abs(F a) { return std::fabs(a); }
  static F Max(F a, F b) { return a > b ? a : b; }
  static F RoundEven(F a) { return std::nearbyint(a); }
  static M Greater(F a, F b) { return a > b; }
  static F Select(M m, F yes, F no) { return m ? yes : no; }
};

}  // namespace tersekv
