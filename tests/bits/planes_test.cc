// SPDX-License-Identifier: Apache-2.0
#include "src/bits/planes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes Pack(const Bytes& codes, int bits) {
  constexpr uint8_t kGuard = 0xa5;
  const size_t size = PlaneRowBytes(codes.size(), bits);
  Bytes row(size + 2, kGuard);
  PackPlanes(codes.data(), codes.size(), bits, row.data() + 1);
  EXPECT_EQ(row.front(), kGuard);
  EXPECT_EQ(row.back(), kGuard);
  return {row.begin() + 1, row.end() - 1};
}

Bytes Unpack(const Bytes& row, size_t n, int bits) {
  Bytes codes(n, 0xff);
  UnpackPlanes(row.data(), n, bits, codes.data());
  return codes;
}

Bytes RandomCodes(reference::Random* random, size_t n, int bits) {
  Bytes codes(n);
  for (uint8_t& c : codes) c = static_cast<uint8_t>(random->Below(size_t{1} << bits));
  return codes;
}

// Written by hand: a plane of w bits keeps code g*m + j in bits [g*w, g*w + w) of byte j.
TEST(Planes, GoldenBytes) {
  EXPECT_EQ(Pack({1, 0, 1, 1, 0, 0, 0, 1}, 1), Bytes({0x8d}));
  EXPECT_EQ(Pack({0, 1, 2, 3, 3, 2, 1, 0}, 2), Bytes({0x78, 0x2d}));
  EXPECT_EQ(Pack({0, 1, 2, 3, 4, 5, 6, 7}, 3), Bytes({0x88, 0xdd, 0xf0}));
  EXPECT_EQ(Pack({1, 2, 3, 4, 5, 6, 7, 8}, 4), Bytes({0x51, 0x62, 0x73, 0x84}));
  EXPECT_EQ(Pack({1, 18, 3, 20, 5, 22, 7, 24}, 5), Bytes({0x51, 0x62, 0x73, 0x84, 0xaa}));
  EXPECT_EQ(Pack({0x31, 0x02, 0x13, 0x24, 0x35, 0x06, 0x17, 0x28}, 6), Bytes({0x51, 0x62, 0x73, 0x84, 0x77, 0x88}));
  EXPECT_EQ(Pack({0x71, 0x02, 0x13, 0x24, 0x35, 0x46, 0x57, 0x68}, 7),
            Bytes({0x51, 0x62, 0x73, 0x84, 0x77, 0x88, 0xe1}));
  EXPECT_EQ(Pack({0, 255, 1, 128, 7, 8, 9, 10}, 8), Bytes({0, 255, 1, 128, 7, 8, 9, 10}));
  EXPECT_EQ(Pack({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0}, 4),
            Bytes({0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7, 0x08}));
}

TEST(Planes, WidthsAreSumsOfPlanesLowBitsFirst) {
  const std::vector<std::vector<int>> widths = {{}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};
  for (int bits = 1; bits <= 8; ++bits) {
    std::vector<int> seen;
    int next_shift = 0;
    size_t next_offset = 0;
    ForEachPlane(64, bits, [&](int width, int shift, size_t offset) {
      EXPECT_EQ(shift, next_shift);
      EXPECT_EQ(offset, next_offset);
      next_shift += width;
      next_offset += static_cast<size_t>(8 * width);
      seen.push_back(width);
    });
    EXPECT_EQ(seen, widths[static_cast<size_t>(bits)]);
    EXPECT_EQ(next_offset, PlaneRowBytes(64, bits));
  }
}

TEST(Planes, RoundTripsEveryLength) {
  reference::Random random(4);
  for (int bits = 1; bits <= 8; ++bits) {
    for (size_t n = 8; n <= 1024; n += 8) {
      Bytes codes = RandomCodes(&random, n, bits);
      for (size_t i = 0; i < n / 2; ++i) codes[i] = static_cast<uint8_t>(i % (size_t{1} << bits));
      const Bytes row = Pack(codes, bits);
      ASSERT_EQ(Unpack(row, n, bits), codes) << bits << " " << n;
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(GetPlaneCode(row.data(), n, bits, i), codes[i]) << bits << " " << n;
    }
  }
}

TEST(Planes, CodeByCodeInAnyOrderIsTheWholeRow) {
  reference::Random random(5);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const size_t n : {8, 16, 32, 64, 128, 1024}) {
      const Bytes codes = RandomCodes(&random, n, bits);
      std::vector<size_t> order(n);
      for (size_t i = 0; i < n; ++i) {
        order[i] = i;
        std::swap(order[i], order[random.Below(i + 1)]);
      }
      Bytes row(PlaneRowBytes(n, bits), 0x5a);  // what was there before doesn't matter
      for (const size_t i : order) SetPlaneCode(row.data(), n, bits, i, codes[i]);
      ASSERT_EQ(row, Pack(codes, bits)) << bits << " " << n;
    }
  }
}

TEST(Planes, SettingACodeTouchesNoOther) {
  reference::Random random(6);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const size_t n : {8, 64, 128}) {
      Bytes codes = RandomCodes(&random, n, bits);
      Bytes row(PlaneRowBytes(n, bits) + 2, 0xa5);
      PackPlanes(codes.data(), n, bits, row.data() + 1);
      for (size_t i = 0; i < n; ++i) {
        for (const size_t code : {size_t{0}, (size_t{1} << bits) - 1, random.Below(size_t{1} << bits)}) {
          codes[i] = static_cast<uint8_t>(code);
          SetPlaneCode(row.data() + 1, n, bits, i, codes[i]);
          ASSERT_EQ(Bytes(row.begin() + 1, row.end() - 1), Pack(codes, bits)) << bits << " " << n << " " << i;
        }
      }
      EXPECT_EQ(row.front(), 0xa5);
      EXPECT_EQ(row.back(), 0xa5);
    }
  }
}

TEST(Planes, EveryCodeAtEveryPlace) {
  for (int bits = 1; bits <= 8; ++bits) {
    Bytes row(PlaneRowBytes(32, bits));
    for (size_t i = 0; i < 32; ++i) {
      for (size_t code = 0; code < size_t{1} << bits; ++code) {
        SetPlaneCode(row.data(), 32, bits, i, static_cast<uint8_t>(code));
        ASSERT_EQ(GetPlaneCode(row.data(), 32, bits, i), code);
        ASSERT_EQ(Unpack(row, 32, bits)[i], code);
      }
    }
  }
}

}  // namespace
}  // namespace tersekv
