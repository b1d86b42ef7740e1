// SPDX-License-Identifier: Apache-2.0
#include "src/bits/blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using Bytes = std::vector<uint8_t>;

// codes[k * width + n] and the blocks that hold them, between guards.
class Matrix {
 public:
  static constexpr uint8_t kGuard = 0xa5;

  Matrix(int bits, size_t depth, size_t width, uint64_t seed)
      : bits_(bits),
        depth_(depth),
        width_(width),
        random_(seed),
        codes_(depth * width),
        blocks_(depth * width * static_cast<size_t>(bits) / 8 + 2, kGuard) {
    for (size_t i = 1; i + 1 < blocks_.size(); ++i) blocks_[i] = static_cast<uint8_t>(random_.Next());
  }
  uint8_t* blocks() { return blocks_.data() + 1; }
  uint8_t RandomCode() { return static_cast<uint8_t>(random_.Below(size_t{1} << bits_)); }
  void SetRow(size_t k) {
    Bytes row(width_);
    for (size_t n = 0; n < width_; ++n) row[n] = codes_[k * width_ + n] = RandomCode();
    SetBlockRow(blocks(), bits_, depth_, width_, k, row.data());
  }
  void SetColumn(size_t n) {
    Bytes column(depth_);
    for (size_t k = 0; k < depth_; ++k) column[k] = codes_[k * width_ + n] = RandomCode();
    SetBlockColumn(blocks(), bits_, depth_, n, column.data());
  }
  void ExpectAll() {
    for (size_t k = 0; k < depth_; ++k) {
      for (size_t n = 0; n < width_; ++n) {
        ASSERT_EQ(GetBlockCode(blocks(), bits_, depth_, width_, k, n), codes_[k * width_ + n])
            << bits_ << " bits, " << depth_ << " x " << width_ << ", k " << k << ", n " << n;
      }
    }
    ASSERT_EQ(blocks_.front(), kGuard);
    ASSERT_EQ(blocks_.back(), kGuard);
  }
  reference::Random& random() { return random_; }

 private:
  int bits_;
  size_t depth_, width_;
  reference::Random random_;
  Bytes codes_, blocks_;
};

constexpr std::pair<size_t, size_t> kSizes[] = {{16, 32},  {32, 64}, {64, 64}, {64, 128}, {80, 96},
                                                {128, 32}, {64, 80}, {32, 16}, {128, 112}};

size_t FullColumns(size_t width) { return width / kBlockWidth * kBlockWidth; }

TEST(Blocks, RowsAndColumnsComeBackAndNeighboursStay) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const auto& [depth, width] : kSizes) {
      Matrix matrix(bits, depth, width, static_cast<uint64_t>(bits) * depth + width);
      for (size_t k = 0; k < depth; ++k) matrix.SetRow(k);
      matrix.ExpectAll();
      for (int again = 0; again < 4; ++again) {
        if (FullColumns(width) > 0) matrix.SetColumn(matrix.random().Below(FullColumns(width)));
        matrix.SetRow(matrix.random().Below(depth));
      }
      matrix.ExpectAll();
      for (size_t n = 0; n < FullColumns(width); ++n) matrix.SetColumn(n);
      matrix.ExpectAll();
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

// Each bit of a block belongs to exactly one bit of one code.
TEST(Blocks, EveryBitIsUsedOnce) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const bool narrow : {false, true}) {
      const size_t depth = narrow ? 2 * kBlockDepth : kBlockDepth, width = narrow ? kBlockWidth / 2 : kBlockWidth;
      Bytes used(BlockBytes(bits), 0);
      for (size_t k = 0; k < depth; ++k) {
        for (size_t n = 0; n < width; ++n) {
          for (int bit = 0; bit < bits; ++bit) {
            Bytes row(width, 0), block(BlockBytes(bits), 0);
            row[n] = static_cast<uint8_t>(1 << bit);
            SetBlockRow(block.data(), bits, depth, width, k, row.data());
            int ones = 0;
            for (size_t i = 0; i < block.size(); ++i) {
              ones += __builtin_popcount(block[i]);
              ASSERT_EQ(used[i] & block[i], 0);
              used[i] |= block[i];
            }
            ASSERT_EQ(ones, 1);
          }
        }
      }
      EXPECT_EQ(used, Bytes(BlockBytes(bits), 0xff)) << bits;
    }
  }
}

// Places written by hand, as the header describes them.
TEST(Blocks, GoldenPlaces) {
  const auto place = [](int bits, size_t k, size_t n, uint8_t code, size_t width = 64) {
    Bytes row(width, 0), blocks(64 * width * static_cast<size_t>(bits) / 8, 0);
    row[n] = code;
    SetBlockRow(blocks.data(), bits, 64, width, k, row.data());
    std::vector<std::pair<size_t, int>> set;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] != 0) set.emplace_back(i, blocks[i]);
    }
    return set;
  };
  using Set = std::vector<std::pair<size_t, int>>;
  // 4 bits: block = (n / 32) * 4 + k / 16 of 256 bytes, row k % 4, byte 4 * (n % 16) + k % 16 / 4.
  EXPECT_EQ(place(4, 0, 0, 0xf), (Set{{0, 0x0f}}));
  EXPECT_EQ(place(4, 0, 16, 0xf), (Set{{0, 0xf0}}));
  EXPECT_EQ(place(4, 8, 5, 0xa), (Set{{4 * 5 + 2, 0x0a}}));
  EXPECT_EQ(place(4, 16 + 6, 32 + 19, 0x9), (Set{{5 * 256 + 2 * 64 + 4 * 3 + 1, 0x90}}));
  // 3 bits: step 3 lives in the fourth bits of the other rows.
  EXPECT_EQ(place(3, 2, 1, 5), (Set{{2 * 64 + 4, 5}}));
  EXPECT_EQ(place(3, 3, 1, 5), (Set{{4, 8}, {2 * 64 + 4, 8}}));
  EXPECT_EQ(place(3, 7, 17, 7), (Set{{4 + 1, 0x80}, {64 + 4 + 1, 0x80}, {2 * 64 + 4 + 1, 0x80}}));
  // 2 bits: two steps a row, both in one nibble.
  EXPECT_EQ(place(2, 1, 0, 3), (Set{{0, 0x0c}}));
  EXPECT_EQ(place(2, 2, 16, 2), (Set{{64, 0x20}}));
  // 6 bits: nibbles, then crumbs. 5 and 7: the single bits come last.
  EXPECT_EQ(place(6, 3, 0, 0x2a), (Set{{3 * 64, 0x0a}, {5 * 64, 0x08}}));
  EXPECT_EQ(place(5, 3, 16, 0x10), (Set{{4 * 64, 0x80}}));
  EXPECT_EQ(place(7, 1, 0, 0x7f), (Set{{64, 0x0f}, {4 * 64, 0x0c}, {6 * 64, 0x04}}));
  // 8 bits: a row for each step and half.
  EXPECT_EQ(place(8, 1, 16, 0xee), (Set{{3 * 64, 0xee}}));
  // 80 = 2 * 32 + 16: blocks 8 and 9 hold k 0 to 31 and 32 to 63 of the last 16.
  EXPECT_EQ(place(4, 0, 64, 0xf, 80), (Set{{8 * 256, 0x0f}}));
  EXPECT_EQ(place(4, 16, 64, 0xf, 80), (Set{{8 * 256, 0xf0}}));
  EXPECT_EQ(place(4, 32 + 16 + 6, 64 + 3, 0x9, 80), (Set{{9 * 256 + 2 * 64 + 4 * 3 + 1, 0x90}}));
}

}  // namespace
}  // namespace tersekv
