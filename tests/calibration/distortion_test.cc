// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/distortion.h"

#include <gtest/gtest.h>

#include <vector>

#include "tersekv/codec.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

TEST(Distortion, KnownValues) {
  EXPECT_NEAR(LloydMaxDistortion(2, 128), .1160001 * 1.002, 1e-5);
  EXPECT_NEAR(LloydMaxDistortion(4, 64), .009131518 * 1.003, 1e-5);
  EXPECT_NEAR(LloydMaxDistortion(3, 96), .03377348 * 1.001, 1e-5);  // between two rows, linear in 1/d
  EXPECT_NEAR(LloydMaxDistortion(5, 192), .002469088 * 1.009, 1e-5);
  EXPECT_NEAR(LloydMaxDistortion(2, 1024), .1172963 * 1.002, 1e-5);
}

TEST(Distortion, FallsWithBits) {
  for (const int d : {64, 80, 128, 256, 512, 1024}) {
    for (int bits = 3; bits <= 8; ++bits) {
      const double factor = LloydMaxDistortion(bits - 1, d) / LloydMaxDistortion(bits, d);
      EXPECT_GT(factor, 2.6) << d << " " << bits;
      EXPECT_LT(factor, 4.6) << d << " " << bits;
    }
  }
}

// The codec reaches the table on Gaussian rows.
TEST(Distortion, IsWhatTheCodecDoes) {
  constexpr int kRows = 4000;
  for (const int d : {64, 128}) {
    const std::vector<float> rows = reference::GaussianRows(7, kRows, d);
    std::vector<float> back(rows.size());
    for (int bits = 2; bits <= 8; ++bits) {
      KvSpec spec = DefaultsOf(Family::kLloydMax, static_cast<float>(bits), Family::kLloydMax, 4, 0);
      spec.mean = MeanMode::kOff;
      spec.scale = false;
      spec.k.norm = spec.v.norm = NormMode::kNone;
      const auto codec = VectorCodec::Create(spec, Kv::kK, d);
      ASSERT_TRUE(codec) << codec.status().ToString();
      std::vector<uint8_t> records(kRows * (*codec)->record_bytes());
      ASSERT_TRUE((*codec)->Encode(rows.data(), kRows, records.data()).ok());
      (*codec)->Decode(records.data(), kRows, back.data());
      double error = 0, energy = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        const double x = static_cast<double>(rows[i]), e = x - static_cast<double>(back[i]);
        error += e * e;
        energy += x * x;
      }
      EXPECT_NEAR(error / energy / LloydMaxDistortion(bits, d), 1, .03) << d << " " << bits;
    }
  }
}

}  // namespace
}  // namespace tersekv
