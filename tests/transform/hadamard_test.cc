// SPDX-License-Identifier: Apache-2.0
#include "src/transform/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "tests/reference/plain_encode.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kOrders[] = {8, 16, 32, 64, 128, 256, 512, 1024};

// Sylvester's matrix: entry (r, c) is the parity of the bits that r and c share.
int Entry(int r, int c) { return std::popcount(static_cast<unsigned>(r & c)) % 2 == 0 ? 1 : -1; }

TEST(Hadamard, Orders) {
  for (int d = -8; d <= 2100; ++d) {
    bool expected = false;
    for (const int order : kOrders) expected |= d == order;
    EXPECT_EQ(HadamardOrderSupported(d), expected) << d;
  }
}

TEST(Hadamard, EqualsTheMatrixOnIntegers) {
  reference::Random random(7);
  for (const int d : kOrders) {
    std::vector<float> y(static_cast<size_t>(d));
    for (float& v : y) v = static_cast<float>(static_cast<int>(random.Below(2001)) - 1000);
    const std::vector<float> x = y;
    HadamardRow(y.data(), d);
    for (int r = 0; r < d; ++r) {
      int64_t sum = 0;  // every partial sum is exact in fp32 too
      for (int c = 0; c < d; ++c) sum += Entry(r, c) * static_cast<int64_t>(x[static_cast<size_t>(c)]);
      ASSERT_EQ(y[static_cast<size_t>(r)], static_cast<float>(sum)) << d << " " << r;
    }
  }
}

TEST(Hadamard, ColumnsAreOrthogonal) {
  for (const int d : kOrders) {
    for (int c = 0; c < d; ++c) {
      std::vector<float> y(static_cast<size_t>(d));
      y[static_cast<size_t>(c)] = 1;
      HadamardRow(y.data(), d);
      for (int r = 0; r < d; ++r) ASSERT_EQ(y[static_cast<size_t>(r)], static_cast<float>(Entry(r, c)));
      HadamardRow(y.data(), d);  // H is symmetric: H H^T = d I
      for (int r = 0; r < d; ++r) ASSERT_EQ(y[static_cast<size_t>(r)], r == c ? static_cast<float>(d) : 0.0f);
    }
  }
}

// Sums of rounded values depend on their order, and the order is part of the format.
TEST(Hadamard, SumsInTheOrderOfStridesOneTwoFour) {
  for (const int d : kOrders) {
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
