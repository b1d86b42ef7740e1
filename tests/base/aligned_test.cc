// SPDX-License-Identifier: Apache-2.0
#include "src/base/aligned.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

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

TEST(Huge, KeepsItsContentWhenHugePagesAreAsked) {
  constexpr size_t kBytes = 2 * kHugePageBytes;
  const HugeArray array = MakeHuge(kBytes);
  for (size_t i = 0; i < kBytes; ++i) array[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  UseHugePages(array.get(), kBytes);
  UseHugePages(array.get(), kBytes);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(array[i], static_cast<uint8_t>(i * 2654435761u >> 13)) << i;
}

#if defined(__linux__)
TEST(Huge, IsResidentWhereItWasTouchedOnly) {
  if (madvise(nullptr, 0, 25) != 0) GTEST_SKIP() << "this Linux has no MADV_COLLAPSE: huge pages from the start";
  constexpr size_t kTouched = 64 << 10;
  const HugeArray array = MakeHuge(kHugePageBytes);
  std::memset(array.get(), 1, kTouched);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(kHugePageBytes / page);
  ASSERT_EQ(mincore(array.get(), kHugePageBytes, resident.data()), 0);
  size_t pages = 0;
  for (const unsigned char flag : resident) pages += flag & 1;
  EXPECT_EQ(pages, kTouched / page);
}
#endif

TEST(Aligned, IsZeroedOnALine) {
  const AlignedArray<uint16_t> a = MakeAligned<uint16_t>(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.get()) % kLineBytes, 0u);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(a[i], 0);
  EXPECT_EQ(MakeAligned<float>(0), nullptr);
}

}  // namespace
}  // namespace tersekv
