// SPDX-License-Identifier: Apache-2.0
// Rows on the edges of cells: a rotated value that equals threshold * norm exactly takes the lower code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "src/codec/list.h"
#include "src/codec/lloyd_max.h"
#include "src/cpu/encoder.h"
#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/plain_encode.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr RotationKind kKinds[] = {RotationKind::kNone, RotationKind::kHadamard, RotationKind::kHaar};

struct Head {
  Head(int d, int bits, RotationKind kind) {
    const auto haar = kind == RotationKind::kHaar ? HaarMatrix(1, d) : nullptr;
    rotation = RotationOp(kind, 1, 0, 0, false, d, haar);
    plain.d = codec.d = d;
    plain.bits = codec.bits = bits;
    plain.norm = codec.norm = NormMode::kUnbiased;
    codec.rotation = &rotation;
    codec.sqrt_d = std::sqrt(static_cast<float>(d));
    if (kind == RotationKind::kHadamard) plain.signs = reference::PlainSigns(1, 0, 0, false, d);
    if (kind == RotationKind::kHaar) plain.haar = *haar;
  }
  Head(const Head&) = delete;

  // d (y_0 - threshold * s) / d x_0
  float Slope(float threshold, float x0, float s) const {
    const float rotation_slope =
        !plain.signs.empty() ? plain.signs[0] : (plain.haar.empty() ? 1.0f : plain.haar[0]) * codec.sqrt_d;
    return rotation_slope - threshold * x0 / s;
  }

  RotationOp rotation;
  HeadCodec codec;
  reference::PlainCodec plain;
};

class Ties : public testing::Test {
 protected:
  ~Ties() override { ForceSimdTarget(""); }

  // The codes of channel 0 from every encoder; equal, or the test fails.
  int FirstCode(const Head& head, const std::vector<float>& row) {
    const reference::PlainRow expected = reference::PlainEncode(head.plain, row.data());
    std::vector<uint8_t> codes(row.size());
    uint16_t scale = 0;
    for (const std::string& target : targets_) {
      ForceSimdTarget(target);
      for (const Encoder* encoder : {scalar_.get(), simd_.get()}) {
        std::vector<float> scratch(encoder->ScratchFloats(head.codec.d));
        EXPECT_TRUE(encoder->Encode(head.codec, row.data(), 1, codes.data(), &scale, scratch.data()));
        EXPECT_EQ(codes, expected.codes) << target;
        EXPECT_EQ(scale, expected.scale) << target;
      }
    }
    return expected.codes[0];
  }

  const std::vector<std::string> targets_ = SimdTargets();
  const std::unique_ptr<const Encoder> scalar_ = MakeScalarEncoder(), simd_ = MakeSimdEncoder();
};

// Moves x_0 until y_0 == threshold * s in fp32. False: this row has no such x_0 nearby.
bool PutOnEdge(const Head& head, float threshold, std::vector<float>* row) {
  for (int step = 0; step < 40; ++step) {
    const reference::PlainRow now = reference::PlainEncode(head.plain, row->data());
    const float edge = threshold * now.s, y = now.y[0];
    if (y == edge) return true;
    const float next = (*row)[0] + (edge - y) / head.Slope(threshold, (*row)[0], now.s);
    if (next == (*row)[0]) return false;
    (*row)[0] = next;
  }
  return false;
}

TEST_F(Ties, ThresholdsGoDown) {
  for (int bits = 2; bits <= 6; ++bits) {
    const LevelTable& table = LevelsOf(bits);
    for (const int d : {32, 128}) {
      for (const RotationKind kind : kKinds) {
        const Head head(d, bits, kind);
        int ties = 0, wanted = 0;
        for (size_t k = 0; k + 1 < static_cast<size_t>(table.count); ++k) {
          for (uint64_t attempt = 0, found = 0; attempt < 60 && found < 3; ++attempt) {
            std::vector<float> row = reference::GaussianRows(100 * k + attempt, 1, d);
            if (table.threshold[k] == 0 && kind != RotationKind::kNone) {
              for (float& v : row) v = std::nearbyint(v * 64.0f);  // sums are exact, so that zero is hit
            }
            if (!PutOnEdge(head, table.threshold[k], &row)) continue;
            ++found;
            ++ties;
            ASSERT_EQ(FirstCode(head, row), static_cast<int>(k)) << bits << " bits, d " << d;
            const float s = reference::PlainEncode(head.plain, row.data()).s;  // and a little more passes it
            row[0] += 1e-4f * s / head.Slope(table.threshold[k], row[0], s);
            ASSERT_EQ(FirstCode(head, row), static_cast<int>(k + 1)) << bits << " bits, d " << d;
          }
          wanted += 3;
        }
        EXPECT_GE(ties, wanted / 2) << bits << " bits, d " << d << ", rotation " << static_cast<int>(kind);
      }
    }
  }
}

TEST_F(Ties, ZeroTakesTheLowerMiddleCell) {
  for (int bits = 2; bits <= 6; ++bits) {
    const int lower = (1 << (bits - 1)) - 1;
    for (const float zero : {0.0f, -0.0f}) {
      std::vector<float> row(32, 1.0f);
      row[0] = zero;
      EXPECT_EQ(FirstCode(Head(32, bits, RotationKind::kNone), row), lower);
    }
    const Head head(32, bits, RotationKind::kHadamard);
    std::vector<float> row(32);  // y_0 = sum of sign * x = 0
    for (size_t c = 0; c < 32; ++c) row[c] = head.plain.signs[c] * (c < 16 ? 3.0f : -3.0f);
    EXPECT_EQ(FirstCode(head, row), lower);
    row[3] += head.plain.signs[3] * 0x1p-10f;
    EXPECT_EQ(FirstCode(head, row), lower + 1);
  }
}

TEST_F(Ties, GridRoundsToEven) {
  for (const int bits : {7, 8}) {
    const int q = bits == 7 ? 63 : 127;
    const Head head(64, bits, RotationKind::kNone);  // y = 8 x exactly
    for (int level = -q; level < q; ++level) {
      std::vector<float> row(64, 0.25f);
      row[1] = static_cast<float>(q) / 8.0f;  // the largest: q / amax is 1
      row[0] = (static_cast<float>(level) + 0.5f) / 8.0f;
      const int even = level % 2 == 0 ? level : level + 1;
      EXPECT_EQ(FirstCode(head, row), even + q) << level;
      row[0] = std::nextafter(row[0], 100.0f);
      EXPECT_EQ(FirstCode(head, row), level + 1 + q) << level;
    }
  }
}

// The largest value is the last level, whatever q / amax rounds to.
TEST_F(Ties, GridEndsAtTheLargestValue) {
  reference::Random random(3);
  for (const int bits : {7, 8}) {
    const int q = bits == 7 ? 63 : 127;
    const Head head(64, bits, RotationKind::kNone);
    for (int i = 0; i < 300; ++i) {
      std::vector<float> row(64, 0.0f);
      row[0] = static_cast<float>(random.Uniform() + 1);
      EXPECT_EQ(FirstCode(head, row), 2 * q);
      row[0] = -row[0];
      EXPECT_EQ(FirstCode(head, row), 0);
    }
  }
}

}  // namespace
}  // namespace tersekv
