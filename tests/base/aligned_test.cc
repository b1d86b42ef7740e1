// SPDX-License-Identifier: Apache-2.0
#include "src/base/aligned.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tersekv {
namespace {

TEST(Huge, IsAlignedCountedAndGivenBack) {
  const size_t before = HugeBytes();
  {
    HugeArray a = MakeHuge(kHugePageBytes), b = MakeHuge(3 * kHugePageBytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.get()) % kHugePageBytes, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.get()) % kHugePageBytes, 0u);
    std::memset(a.get(), 1, kHugePageBytes);
    std::memset(b.get(), 2, 3 * kHugePageBytes);
    EXPECT_EQ(a[kHugePageBytes - 1], 1);
    EXPECT_EQ(HugeBytes(), before + 4 * kHugePageBytes);
    a = std::move(b);
    EXPECT_EQ(HugeBytes(), before + 3 * kHugePageBytes);
    EXPECT_EQ(a[3 * kHugePageBytes - 1], 2);
  }
  EXPECT_EQ(HugeBytes(), before);
}

TEST(Aligned, IsZeroedOnALine) {
  const AlignedArray<uint16_t> a = MakeAligned<uint16_t>(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.get()) % kLineBytes, 0u);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(a[i], 0);
  EXPECT_EQ(MakeAligned<float>(0), nullptr);
}

}  // namespace
}  // namespace tersekv
