// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/sensitivity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/calibration/distortion.h"

namespace tersekv {
namespace {

using Anchors = std::vector<UnitSensitivity::Anchor>;

TEST(InterpolateKl, ProportionalToDistortion) {
  const double w = 3.5;
  const Anchors anchors = {{2, w * LloydMaxDistortion(2, 64)}, {4, w * LloydMaxDistortion(4, 64)}};
  for (int bits = 2; bits <= 8; ++bits) {
    EXPECT_NEAR(InterpolateKl(anchors, bits, 64) / (w * LloydMaxDistortion(bits, 64)), 1, 1e-9) << bits;
  }
}

TEST(InterpolateKl, GoesThroughAnchorsAndFalls) {
  const Anchors anchors = {{3, .2}, {5, .02}, {6, .004}};
  for (const auto& a : anchors) EXPECT_NEAR(InterpolateKl(anchors, a.bits, 128), a.kl, 1e-9);
  for (int bits = 3; bits <= 8; ++bits) {
    EXPECT_LT(InterpolateKl(anchors, bits, 128), InterpolateKl(anchors, bits - 1, 128)) << bits;
  }
}

TEST(InterpolateKl, NoiseCannotTurnItRound) {
  for (const Anchors& anchors :
       {Anchors{{2, .01}, {4, .02}}, Anchors{{2, 0}, {4, 0}}, Anchors{{2, .1}, {4, 0}}, Anchors{{3, .1}}}) {
    for (int bits = 3; bits <= 8; ++bits) {
      const double kl = InterpolateKl(anchors, bits, 64);
      EXPECT_GT(kl, 0);
      EXPECT_LT(kl, InterpolateKl(anchors, bits - 1, 64)) << bits;
    }
  }
}

TEST(SensitivityModel, ProtectedLayersKeepEightBits) {
  const std::vector<LayerShape> layers(4, {4, 2, 64, 64});
  std::vector<UnitSensitivity> units;
  for (int l = 0; l < 4; ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) units.push_back({l, side, {{2, .1}, {4, .01}}});
  }
  const SensitivityModel model(layers, units, 1, 1);
  const auto budget = UniformBytesPerToken(layers, 5);
  const auto bits = model.Solve(*budget, {});
  ASSERT_TRUE(bits) << bits.status().ToString();
  EXPECT_EQ((*bits)[0], (LayerBits{8, 8}));
  EXPECT_EQ((*bits)[3], (LayerBits{8, 8}));
  EXPECT_EQ((*bits)[1], (LayerBits{2, 2}));
  EXPECT_LE(model.BytesPerToken(*bits), *budget);
  EXPECT_FALSE(model.Solve(*UniformBytesPerToken(layers, 4), {}));
}

TEST(SensitivityModel, PredictLeavesRawSidesOut) {
  const SensitivityModel model({{2, 1, 64, 64}}, {{0, Kv::kK, {{2, .1}}}, {0, Kv::kV, {{2, .3}}}}, 0, 0);
  EXPECT_NEAR(model.Predict(std::vector<LayerBits>{{2, 2}}, {}), .4, 1e-9);
  EXPECT_NEAR(model.Predict(std::vector<LayerBits>{{2, kRawBits}}, {2, 1}), .2, 1e-9);
  EXPECT_EQ(model.Predict(std::vector<LayerBits>{{kRawBits, kRawBits}}, {}), 0);
}

TEST(UniformBytesPerToken, LinearBetweenWidths) {
  const std::vector<LayerShape> layers(2, {9, 3, 64, 64});
  EXPECT_EQ(*UniformBytesPerToken(layers, 4), 2 * 2 * 3 * 34);
  EXPECT_EQ(*UniformBytesPerToken(layers, 4.5), 2 * 2 * 3 * 38);
  EXPECT_EQ(*UniformBytesPerToken(layers, 8), 2 * 2 * 3 * 66);
  EXPECT_EQ(*UniformBytesPerToken(layers, 2), 2 * 2 * 3 * 18);
  EXPECT_FALSE(UniformBytesPerToken(layers, 1.5));
  EXPECT_FALSE(UniformBytesPerToken(layers, 8.5));
  EXPECT_FALSE(UniformBytesPerToken(layers, std::nan("")));
}

}  // namespace
}  // namespace tersekv
