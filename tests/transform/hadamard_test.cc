// SPDX-License-Identifier: Apache-2.0
#include "src/transform/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/reference/plain_encode.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kSylvester[] = {8, 16, 32, 64, 128, 256, 512, 1024};
constexpr int kPaley[] = {12,  20,  24,  28,  36,  40,  48,  56,  72,  80,  96,  112,
                          144, 160, 192, 224, 288, 320, 384, 448, 576, 640, 768, 896};

std::vector<int> Orders() {
  std::vector<int> orders(std::begin(kSylvester), std::end(kSylvester));
  orders.insert(orders.end(), std::begin(kPaley), std::end(kPaley));
  return orders;
}

// Entry (r, c) of Paley (x) Sylvester; Sylvester's is the parity of the bits that r and c share.
int Entry(int d, int r, int c) {
  const int p = reference::PlainPaleyOrder(d), inner = d / p;
  const int sylvester = std::popcount(static_cast<unsigned>((r % inner) & (c % inner))) % 2 == 0 ? 1 : -1;
  return p == 1 ? sylvester : sylvester * reference::PlainPaley(p, r / inner, c / inner);
}

TEST(Hadamard, Orders) {
  const std::vector<int> orders = Orders();
  const std::set<int> expected(orders.begin(), orders.end());
  for (int d = -8; d <= 2100; ++d) EXPECT_EQ(HadamardOrderSupported(d), expected.contains(d)) << d;
}

TEST(Hadamard, PaleyMatricesAreOrthogonal) {
  for (const int p : {12, 20, 28, 36}) {
    const float* m = PaleyMatrix(p);
    bool symmetric = true;
    for (int a = 0; a < p; ++a) {
      for (int b = 0; b < p; ++b) {
        int dot = 0;
        for (int c = 0; c < p; ++c) dot += static_cast<int>(m[a * p + c] * m[b * p + c]);
        ASSERT_EQ(dot, a == b ? p : 0) << p;
        ASSERT_EQ(m[a * p + b], static_cast<float>(reference::PlainPaley(p, a, b))) << p << " " << a << " " << b;
        symmetric &= m[a * p + b] == m[b * p + a];
      }
    }
    EXPECT_EQ(symmetric, p == 28 || p == 36) << p;
  }
}

// These rows are part of the format.
TEST(Hadamard, GoldenRowsOfPaley) {
  const auto row = [](int p, int r) {
    std::string text;
    for (int c = 0; c < p; ++c) text += PaleyMatrix(p)[r * p + c] > 0 ? '+' : '-';
    return text;
  };
  EXPECT_EQ(row(12, 0), "++++++++++++");
  EXPECT_EQ(row(12, 1), "-+-+---+++-+");
  EXPECT_EQ(row(20, 2), "-++-++----+-+-++++--");
  EXPECT_EQ(row(28, 0), "+-++++++++++++++++++++++++++");
  EXPECT_EQ(row(28, 3), "+---+--++-+--+-+-+-++-+--++-");
  EXPECT_EQ(row(36, 2), "+++-++++--++------++++------++--++++");
}

TEST(Hadamard, EqualsTheMatrixOnIntegers) {
  reference::Random random(7);
  for (const int d : Orders()) {
    std::vector<float> y(static_cast<size_t>(d));
    for (float& v : y) v = static_cast<float>(static_cast<int>(random.Below(2001)) - 1000);
    const std::vector<float> x = y;
    std::vector<float> transposed = y;
    HadamardRow(y.data(), d);
    HadamardRowTransposed(transposed.data(), d);
    for (int r = 0; r < d; ++r) {
      int64_t sum = 0, transposed_sum = 0;  // every partial sum is exact in fp32 too
      for (int c = 0; c < d; ++c) {
        sum += Entry(d, r, c) * static_cast<int64_t>(x[static_cast<size_t>(c)]);
        transposed_sum += Entry(d, c, r) * static_cast<int64_t>(x[static_cast<size_t>(c)]);
      }
      ASSERT_EQ(y[static_cast<size_t>(r)], static_cast<float>(sum)) << d << " " << r;
      ASSERT_EQ(transposed[static_cast<size_t>(r)], static_cast<float>(transposed_sum)) << d << " " << r;
    }
  }
}

TEST(Hadamard, TransposedUndoesItTimesD) {
  for (const int d : Orders()) {
    for (int c = 0; c < d; ++c) {
      for (const bool transposed_first : {false, true}) {
        std::vector<float> y(static_cast<size_t>(d));
        y[static_cast<size_t>(c)] = 1;
        transposed_first ? HadamardRowTransposed(y.data(), d) : HadamardRow(y.data(), d);
        transposed_first ? HadamardRow(y.data(), d) : HadamardRowTransposed(y.data(), d);
        for (int r = 0; r < d; ++r) ASSERT_EQ(y[static_cast<size_t>(r)], r == c ? static_cast<float>(d) : 0.0f) << d;
      }
    }
  }
}

// Sums of rounded values depend on their order, and the order is part of the format.
TEST(Hadamard, SumsInTheOrderOfTheContract) {
  for (const int d : Orders()) {
    std::vector<float> y = reference::GaussianRows(8, 50, d);
    std::vector<float> expected = y;
    for (int row = 0; row < 50; ++row) {
      HadamardRow(y.data() + row * d, d);
      reference::PlainHadamard(expected.data() + row * d, d);
    }
    ASSERT_EQ(y, expected) << d;
  }
}

}  // namespace
}  // namespace tersekv
