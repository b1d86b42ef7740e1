// SPDX-License-Identifier: Apache-2.0
// Orders of the Hadamard transform, and the plain transform of one row.
//
// d = p * 2^k with p = 1 (Sylvester alone) or a Paley order p: H = Paley(p) (x) Sylvester(2^k), index =
// outer * 2^k + inner. All entries are +1 or -1. Paley's matrices of order 12 and 20 are not symmetric: H^T is another
// transform.
#pragma once

#include <array>
#include <bit>
#include <cstddef>

namespace tersekv {

inline constexpr int kLargestPaleyOrder = 36;

// p of d, 0 when there is no such p: the odd part of d is 1, 3, 5, 7 or 9 and makes p = 1, 12, 20, 28 or 36.
constexpr int PaleyOrder(int d) {
  if (d <= 0) return 0;
  const int odd = d >> std::countr_zero(static_cast<unsigned>(d));
  if (odd == 1) return 1;
  return odd <= 9 && d % (4 * odd) == 0 ? 4 * odd : 0;
}

// Orders this version transforms: 8 to 1024, powers of two and 12, 20, 28, 36 times a power of two.
constexpr bool HadamardOrderSupported(int d) { return d >= 8 && d <= 1024 && PaleyOrder(d) != 0; }

// y: [d] in place, unnormalised: H y and H^T y.
void HadamardRow(float* y, int d);
void HadamardRowTransposed(float* y, int d);

namespace paley_internal {

// chi(a) of the field of q elements: 0, 1 for a square, -1 otherwise.
constexpr int Character(int a, int q) {
  a = (a % q + q) % q;
  for (int x = 1; x < q; ++x) {
    if (x * x % q == a) return 1;
  }
  return a == 0 ? 0 : -1;
}

// Paley 1933. q = p - 1 = 3 mod 4: I + [0 1; -1 chi(r - c)]. q = p / 2 - 1 = 1 mod 4: each entry of the symmetric
// C = [0 1; 1 chi(r - c)] becomes C [1 1; 1 -1], its zeros (the diagonal) become [1 -1; -1 -1].
template <int kP>
constexpr std::array<float, kP * kP> Matrix() {
  std::array<float, kP * kP> h{};
  constexpr bool kFirst = (kP - 1) % 4 == 3 && kP != 28 && kP != 36;  // 27 and 35 are no primes
  constexpr int kQ = kFirst ? kP - 1 : kP / 2 - 1;
  for (int r = 0; r < kP; ++r) {
    for (int c = 0; c < kP; ++c) {
      const int i = kFirst ? r : r / 2, j = kFirst ? c : c / 2;
      int entry = i == 0 || j == 0 ? 1 : Character(i - j, kQ);
      if (kFirst) {
        if (j == 0 && i != 0) entry = -1;
        if (i == j) entry = 1;
      } else if (i == j) {
        entry = r % 2 == 0 && c % 2 == 0 ? 1 : -1;
      } else if (r % 2 == 1 && c % 2 == 1) {
        entry = -entry;
      }
      h[static_cast<size_t>(r * kP + c)] = static_cast<float>(entry);
    }
  }
  return h;
}

inline constexpr auto k12 = Matrix<12>();
inline constexpr auto k20 = Matrix<20>();
inline constexpr auto k28 = Matrix<28>();
inline constexpr auto k36 = Matrix<36>();

}  // namespace paley_internal

// [p, p] row-major, +1 / -1. p: 12, 20, 28, 36.
constexpr const float* PaleyMatrix(int p) {
  switch (p) {
    case 12:
      return paley_internal::k12.data();
    case 20:
      return paley_internal::k20.data();
    case 28:
      return paley_internal::k28.data();
    default:
      return paley_internal::k36.data();
  }
}

}  // namespace tersekv
