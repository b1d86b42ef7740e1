// SPDX-License-Identifier: Apache-2.0
// The device page is a bijection of codes: every bit of a block belongs to one code and is read back.
#include "src/cuda/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "src/cuda/latent.h"

namespace tersekv::cuda {
namespace {

TEST(CudaLayout, EveryBitOfAGroupHasOneCode) {
  for (const int bits : {2, 3, 4, 5, 6, 8, 16}) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      std::set<int> used;
      for (int token = 0; token < kBlockTokens; ++token) {
        for (int channel = 0; channel < kGroupChannels; ++channel) {
          const Place at = PlaceOf(side, token, channel);
          ASSERT_EQ(at.group, 0);
          int covered = 0;
          ForEachPiece(bits, side, at.unit, at.e, [&](int word, int bit, int width, int shift) {
            for (int i = 0; i < width; ++i) {
              EXPECT_TRUE(used.insert(8 * WordOffset(bits, at.lane, word) + bit + i).second) << bits;
              covered |= 1 << (shift + i);
            }
          });
          EXPECT_EQ(covered, (1 << bits) - 1) << bits;
        }
      }
      EXPECT_EQ(static_cast<int>(used.size()), 8 * GroupBytes(bits));
      EXPECT_EQ(*used.rbegin(), 8 * GroupBytes(bits) - 1);
    }
  }
}

TEST(CudaLayout, GroupsFollowEachOther) {
  for (const Kv side : {Kv::kK, Kv::kV}) {
    const Place a = PlaceOf(side, 5, 17), b = PlaceOf(side, 5, 128 + 17);
    EXPECT_EQ(b.group, a.group + 2);
    EXPECT_EQ(b.lane, a.lane);
    EXPECT_EQ(b.unit, a.unit);
    EXPECT_EQ(b.e, a.e);
  }
}

// A token's K codes lie in words that no other pair of tokens touches, and a V word holds four tokens.
TEST(CudaLayout, StoredCodesAreARelabelling) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    std::set<int> stored;
    const int codes = bits == 8 ? 255 : 1 << bits;
    for (int code = 0; code < codes; ++code) {
      EXPECT_EQ(CanonicalCode(bits, StoredCode(bits, code)), code) << bits;
      EXPECT_LT(StoredCode(bits, code), 1 << bits);
      stored.insert(StoredCode(bits, code));
    }
    EXPECT_EQ(static_cast<int>(stored.size()), codes);
  }
}

TEST(CudaLayout, BytesAreThoseOfTheRecords) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int d : {64, 128, 192, 256}) {
      const BlockLayout block{bits, 4, d};
      EXPECT_EQ(block.bytes(), kBlockTokens * (d * bits / 8 + 2 + d / 2 + 2));
      EXPECT_EQ(block.bytes() % 16, 0);
    }
  }
  EXPECT_EQ((BlockLayout{16, 16, 128}.bytes()), kBlockTokens * 128 * 4);
}

// A lane of V's codes has a token's channels of one remainder by 8: they lie together in rows of transformed space.
TEST(CudaLayout, RowsOfTransformedSpaceHoldEveryChannelOnce) {
  std::set<int> channels;
  for (int i = 0; i < 256; ++i) {
    const int channel = RowChannel(i);
    EXPECT_TRUE(channels.insert(channel).second);
    EXPECT_EQ(channel / 64, i / 64);
    EXPECT_EQ(PlaceOf(Kv::kV, 0, channel).lane / 4, i % 64 / 8);
  }
  EXPECT_EQ(*channels.rbegin(), 255);
}

TEST(Cuda, ABuildWithoutItSaysSo) {
  if (*KernelList() != '\0') GTEST_SKIP() << "built with CUDA";
  EXPECT_EQ(Append({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(Decompress({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(TransformQueries({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(Merge({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(LatentAppend({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(LatentAttend({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(Attend({}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_NE(Attend({}, nullptr).message().find("TERSEKV_CUDA"), std::string::npos);
}

}  // namespace
}  // namespace tersekv::cuda
