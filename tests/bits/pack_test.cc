// SPDX-License-Identifier: Apache-2.0
#include "src/bits/pack.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes Pack(const Bytes& codes, int bits) {
  constexpr uint8_t kGuard = 0xa5;
  const size_t size = PackedBytes(codes.size(), bits);
  Bytes out(size + 2, kGuard);
  PackBits(codes.data(), codes.size(), bits, out.data() + 1);
  EXPECT_EQ(out.front(), kGuard);
  EXPECT_EQ(out.back(), kGuard);
  return {out.begin() + 1, out.end() - 1};
}

Bytes Unpack(const Bytes& in, size_t n, int bits) {
  Bytes codes(n);
  UnpackBits(in.data(), n, bits, codes.data());
  return codes;
}

// Written by hand: code 0 sits in the lowest bits of byte 0.
TEST(PackBits, GoldenBytes) {
  EXPECT_EQ(Pack({1, 0, 1, 1, 0, 0, 0, 1}, 1), Bytes({0x8d}));
  EXPECT_EQ(Pack({3, 0, 1, 2}, 2), Bytes({0x93}));
  EXPECT_EQ(Pack({0, 1, 2, 3, 4, 5, 6, 7}, 3), Bytes({0x88, 0xc6, 0xfa}));
  EXPECT_EQ(Pack({1, 2, 3, 4}, 4), Bytes({0x21, 0x43}));
  EXPECT_EQ(Pack({1, 2, 3, 4, 5, 6, 7, 8}, 5), Bytes({0x41, 0x0c, 0x52, 0xcc, 0x41}));
  EXPECT_EQ(Pack({1, 2, 3, 4}, 6), Bytes({0x81, 0x30, 0x10}));
  EXPECT_EQ(Pack({1, 2, 3, 4, 5, 6, 7, 8}, 7), Bytes({0x01, 0xc1, 0x80, 0x50, 0x30, 0x1c, 0x10}));
  EXPECT_EQ(Pack({0, 255, 1, 128}, 8), Bytes({0, 255, 1, 128}));
}

TEST(PackBits, BitsPastTheLastCodeAreZero) {
  EXPECT_EQ(Pack({7}, 3), Bytes({0x07}));
  EXPECT_EQ(Pack({7, 7, 7}, 3), Bytes({0xff, 0x01}));
  EXPECT_EQ(Pack({31, 31}, 5), Bytes({0xff, 0x03}));
  EXPECT_EQ(Pack({}, 5), Bytes());
}

TEST(PackBits, Sizes) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (size_t n = 0; n <= 64; ++n) {
      size_t bytes = 0;
      while (bytes * 8 < n * static_cast<size_t>(bits)) ++bytes;
      EXPECT_EQ(PackedBytes(n, bits), bytes);
    }
  }
}

// Bit k of the stream is bit k % 8 of byte k / 8 and belongs to code k / bits.
TEST(PackBits, EveryBitIsWhereItBelongs) {
  reference::Random random(2);
  for (int bits = 1; bits <= 8; ++bits) {
    Bytes codes(96);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random.Below(size_t{1} << bits));
    const Bytes packed = Pack(codes, bits);
    for (size_t k = 0; k < packed.size() * 8; ++k) {
      const size_t width = static_cast<size_t>(bits);
      ASSERT_EQ((packed[k / 8] >> (k % 8)) & 1, (codes[k / width] >> (k % width)) & 1) << bits << " " << k;
    }
  }
}

TEST(PackBits, RoundTripsEveryLengthAndCode) {
  reference::Random random(3);
  for (int bits = 1; bits <= 8; ++bits) {
    const size_t values = size_t{1} << bits;
    for (size_t n = 8; n <= 1024; n += n < 64 ? 1 : 8) {
      Bytes codes(n);
      for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(i < n / 2 ? i % values : random.Below(values));
      ASSERT_EQ(Unpack(Pack(codes, bits), n, bits), codes) << bits << " " << n;
    }
    for (size_t code = 0; code < values; ++code) {  // each code at each place, between zeros and between ones
      for (size_t i = 0; i < 16; ++i) {
        for (const size_t others : {size_t{0}, values - 1}) {
          Bytes codes(16, static_cast<uint8_t>(others));
          codes[i] = static_cast<uint8_t>(code);
          ASSERT_EQ(Unpack(Pack(codes, bits), 16, bits), codes) << bits << " " << code << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tersekv
