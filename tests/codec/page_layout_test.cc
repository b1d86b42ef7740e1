// SPDX-License-Identifier: Apache-2.0
#include "src/codec/page_layout.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "src/base/half.h"
#include "src/bits/blocks.h"
#include "src/codec/list.h"
#include "src/codec/lloyd_max.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {32, 64, 80, 96, 112, 128, 192, 256, 512, 576};
constexpr int kPages[] = {64, 128};

LayerShape Shape(int kv_heads, int d_k, int d_v) {
  LayerShape shape;
  shape.heads = shape.kv_heads = kv_heads;
  shape.head_dim_k = d_k;
  shape.head_dim_v = d_v;
  return shape;
}

KvSpec Packed(int k_bits, int v_bits, int page) {
  KvSpec spec =
      DefaultsOf(Family::kLloydMax, static_cast<float>(k_bits), Family::kLloydMax, static_cast<float>(v_bits), 0);
  spec.page = page;
  return spec;
}

struct Record {
  std::vector<uint8_t> codes;
  uint16_t scale = 0;
  bool operator==(const Record&) const = default;
};

// One side of a unit with something else before and after it.
class SideOfUnit {
 public:
  SideOfUnit(const PageLayout& layout, Kv kv, uint64_t seed)
      : side_(layout.side(kv)),
        random_(seed),
        unit_(layout.unit_bytes),
        records_(static_cast<size_t>(side_.page_tokens)) {
    for (uint8_t& byte : unit_) byte = static_cast<uint8_t>(random_.Next());
    before_ = unit_;
  }

  void Pack(int slot) {
    Record record = {std::vector<uint8_t>(static_cast<size_t>(side_.d)), static_cast<uint16_t>(random_.Next())};
    for (uint8_t& c : record.codes) c = static_cast<uint8_t>(random_.Below(size_t{1} << side_.bits));
    PackToken(side_, unit_.data(), slot, record.codes.data(), record.scale);
    records_[static_cast<size_t>(slot)] = record;
  }
  void PackAllInRandomOrder() {
    std::vector<int> order(records_.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = 0; i < order.size(); ++i) std::swap(order[i], order[random_.Below(i + 1)]);
    for (const int slot : order) Pack(slot);
  }
  void ExpectAll() const {
    for (size_t slot = 0; slot < records_.size(); ++slot) {
      Record record = {std::vector<uint8_t>(static_cast<size_t>(side_.d)), 0};
      UnpackToken(side_, unit_.data(), static_cast<int>(slot), record.codes.data(), &record.scale);
      ASSERT_EQ(record, records_[slot]) << "slot " << slot;
    }
    for (size_t i = 0; i < unit_.size(); ++i) {
      const bool ours = (i >= side_.codes_offset && i < side_.codes_offset + side_.codes_bytes()) ||
                        (i >= side_.scales_offset && i < side_.scales_offset + side_.scales_bytes());
      if (!ours) {
        ASSERT_EQ(unit_[i], before_[i]) << "byte " << i;
      }
    }
  }
  const SideLayout& side() const { return side_; }
  const std::vector<uint8_t>& unit() const { return unit_; }
  const Record& record(size_t slot) const { return records_[slot]; }
  size_t RandomSlot() { return random_.Below(records_.size()); }

 private:
  SideLayout side_;
  reference::Random random_;
  std::vector<uint8_t> unit_, before_;
  std::vector<Record> records_;
};

TEST(PageLayout, TokensComeBackAndNeighboursStay) {
  for (const int bits : kLloydMaxBits) {
    for (const int d : kDims) {
      for (const int page : kPages) {
        for (const Kv kv : {Kv::kK, Kv::kV}) {
          const PageLayout layout = PageLayout::Make(Packed(bits, bits, page), Shape(2, d, d));
          SideOfUnit side(layout, kv, static_cast<uint64_t>(bits * d + page));
          side.PackAllInRandomOrder();
          side.ExpectAll();
          for (int again = 0; again < 2; ++again) {  // a slot is used again: the others stay
            side.Pack(static_cast<int>(side.RandomSlot()));
            side.ExpectAll();
          }
          ASSERT_FALSE(HasFatalFailure()) << bits << " bits, d " << d << ", page " << page;
        }
      }
    }
  }
}

// What kernels read: blocks of codes [channel][token] for K and [token][channel] for V, scales as an array.
TEST(PageLayout, KeysSumOverChannelsAndValuesOverTokens) {
  for (const int bits : kLloydMaxBits) {
    const PageLayout layout = PageLayout::Make(Packed(bits, bits, 64), Shape(1, 48, 112));
    for (const Kv kv : {Kv::kK, Kv::kV}) {
      SideOfUnit side(layout, kv, 77);
      side.PackAllInRandomOrder();
      const size_t depth = kv == Kv::kK ? 48 : 64, width = kv == Kv::kK ? 64 : 112;
      ASSERT_EQ(side.side().depth(), depth);
      ASSERT_EQ(side.side().width(), width);
      for (size_t k = 0; k < depth; ++k) {
        for (size_t n = 0; n < width; ++n) {
          const uint8_t code = kv == Kv::kK ? side.record(n).codes[k] : side.record(k).codes[n];
          ASSERT_EQ(GetBlockCode(side.unit().data() + side.side().codes_offset, bits, depth, width, k, n),
                    StoredCode(bits, code))
              << bits << " bits, k " << k << ", n " << n;
        }
      }
      for (size_t slot = 0; slot < 64; ++slot) {
        const uint8_t* p = side.unit().data() + side.side().scales_offset + 2 * slot;
        ASSERT_EQ(p[0] | p[1] << 8, side.record(slot).scale);
      }
    }
  }
}

TEST(PageLayout, Sizes) {
  const PageLayout a = PageLayout::Make(Packed(4, 3, 64), Shape(5, 64, 128));
  EXPECT_EQ(a.k.codes_offset, 0u);
  EXPECT_EQ(a.k.codes_bytes(), 64u * 64 * 4 / 8);
  EXPECT_EQ(a.k.row_bytes(), 32u);  // 64 tokens of 4 bits
  EXPECT_EQ(a.k.scales_offset, 2048u);
  EXPECT_EQ(a.v.codes_offset, 2048u + 128);
  EXPECT_EQ(a.v.codes_bytes(), 64u * 128 * 3 / 8);
  EXPECT_EQ(a.v.row_bytes(), 48u);  // 128 channels of 3 bits
  EXPECT_EQ(a.v.scales_offset, 2176u + 3072);
  EXPECT_EQ(a.unit_bytes, 5248u + 128);
  EXPECT_EQ(a.page_bytes, 5376u * 5);
  EXPECT_EQ(a.kv_heads, 5);
  EXPECT_EQ(a.page_tokens, 64);
  EXPECT_FALSE(a.k.token_major);
  EXPECT_TRUE(a.v.token_major);
  for (const auto& [text, bytes] : {std::pair{"f32", 4u}, {"f16", 2u}, {"bf16", 2u}}) {
    const PageLayout raw = PageLayout::Make(ParseSpec(text).value(), Shape(3, 80, 96));
    EXPECT_TRUE(raw.k.raw());
    EXPECT_EQ(raw.k.scales_bytes(), 0u);
    EXPECT_EQ(raw.v.codes_offset, 64u * 80 * bytes);
    EXPECT_EQ(raw.unit_bytes, 64u * (80 + 96) * bytes);
    EXPECT_EQ(raw.page_bytes, raw.unit_bytes * 3);
  }
}

TEST(PageLayout, RawTypesComeBackRounded) {
  for (const char* text : {"f32", "f16", "bf16"}) {
    for (const int page : kPages) {
      KvSpec spec = ParseSpec(text).value();
      spec.page = page;
      const PageLayout layout = PageLayout::Make(spec, Shape(1, 80, 33));
      for (const Kv kv : {Kv::kK, Kv::kV}) {
        const SideLayout& side = layout.side(kv);
        const size_t d = static_cast<size_t>(side.d), n = static_cast<size_t>(page);
        const std::vector<float> rows = reference::GaussianRows(3, n, side.d);
        std::vector<uint8_t> unit(layout.unit_bytes, 0xc3);
        for (size_t i = 0; i < n; ++i) {
          const size_t slot = i * 37 % n;  // every slot once
          PackRawToken(side, unit.data(), static_cast<int>(slot), &rows[slot * d]);
        }
        std::vector<float> row(d);
        for (size_t slot = 0; slot < n; ++slot) {
          UnpackRawToken(side, unit.data(), static_cast<int>(slot), row.data());
          for (size_t c = 0; c < d; ++c) {
            const float x = rows[slot * d + c];
            const float expected = spec.k.family == Family::kF32   ? x
                                   : spec.k.family == Family::kF16 ? F16ToF32(F32ToF16(x))
                                                                   : BF16ToF32(F32ToBF16(x));
            ASSERT_EQ(row[c], expected) << text << " " << slot << " " << c;
            const size_t index = kv == Kv::kK ? c * n + slot : slot * d + c;
            const size_t size = side.bits == 32 ? 4 : 2;
            uint32_t bits = 0;
            std::memcpy(&bits, &unit[side.codes_offset + index * size], size);
            ASSERT_EQ(bits, spec.k.family == Family::kF32   ? std::bit_cast<uint32_t>(x)
                            : spec.k.family == Family::kF16 ? F32ToF16(x)
                                                            : F32ToBF16(x));
          }
        }
        const size_t other = kv == Kv::kK ? layout.v.codes_offset : 0,
                     other_bytes = layout.side(kv == Kv::kK ? Kv::kV : Kv::kK).codes_bytes();
        for (size_t i = 0; i < other_bytes; ++i) ASSERT_EQ(unit[other + i], 0xc3);
      }
    }
  }
}

TEST(PageLayout, StoredCodesAreABijection) {
  for (const int bits : kLloydMaxBits) {
    std::set<int> seen;
    for (int code = 0; code < 1 << bits; ++code) {
      const uint8_t stored = StoredCode(bits, static_cast<uint8_t>(code));
      EXPECT_LT(stored, 1 << bits);
      EXPECT_TRUE(seen.insert(stored).second);
      EXPECT_EQ(CanonicalCode(bits, stored), code);
      if (bits == 8) {  // a level, lifted
        EXPECT_EQ(stored, (code - 127 + 128) % 256);
        continue;
      }
      if (bits != 5 && bits != 6) {
        EXPECT_EQ(stored, code);
        continue;
      }
      // Sign in the top bit, then the place of the magnitude in the ascending list.
      const int level = LevelsOf(bits).level[static_cast<size_t>(code)], half = 1 << (bits - 1);
      EXPECT_EQ(stored >= half, level < 0);
      EXPECT_EQ(std::abs(level), LevelsOf(bits).level[static_cast<size_t>(half + stored % half)]);
    }
  }
}

}  // namespace
}  // namespace tersekv
