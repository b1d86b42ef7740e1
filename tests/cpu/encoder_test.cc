// SPDX-License-Identifier: Apache-2.0
// Codes and scales are the same bits on every SIMD target, row by row, and in a reference that shares no code with
// them.
#include "src/cpu/encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/codec/list.h"
#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/plain_encode.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {32, 64, 80, 96, 112, 128, 192, 256, 512, 576};
constexpr NormMode kNorms[] = {NormMode::kNone, NormMode::kMatch, NormMode::kLs, NormMode::kUnbiased};
constexpr RotationKind kKinds[] = {RotationKind::kNone, RotationKind::kHadamard, RotationKind::kHadamard2,
                                   RotationKind::kHaar};

struct Coded {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  bool operator==(const Coded&) const = default;
};

constexpr uint64_t kSeed = 5;

// A Haar matrix takes longer to make than to use.
std::shared_ptr<const std::vector<float>> Haar(int d) {
  static std::map<int, std::shared_ptr<const std::vector<float>>> made;
  auto& matrix = made[d];
  if (matrix == nullptr) matrix = HaarMatrix(kSeed, d);
  return matrix;
}

// One head for the encoders and the same head for the reference.
struct Head {
  Head(int d, int bits, NormMode norm, RotationKind kind, bool mean, bool scale) {
    const auto haar = kind == RotationKind::kHaar ? Haar(d) : nullptr;
    rotation = RotationOp(kind, kSeed, 3, 2, true, d, haar);
    plain.d = codec.d = d;
    plain.bits = codec.bits = bits;
    plain.norm = codec.norm = norm;
    codec.rotation = &rotation;
    codec.sqrt_d = std::sqrt(static_cast<float>(d));
    if (kind == RotationKind::kHadamard || kind == RotationKind::kHadamard2) {
      plain.signs = reference::PlainSigns(kSeed, 3, 2, true, d);
    }
    if (kind == RotationKind::kHadamard2) plain.second_signs = reference::PlainSecondSigns(kSeed, 3, 2, true, d);
    if (kind == RotationKind::kHaar) plain.haar = *haar;
    reference::Random random(static_cast<uint64_t>(d));
    for (int c = 0; c < d; ++c) {
      const float m = static_cast<float>(random.Gaussian()), s = static_cast<float>(std::exp(random.Gaussian()));
      if (mean) plain.mean.push_back(m);
      if (scale) plain.inv_scale.push_back(1.0f / s);
    }
    if (mean) codec.mean = plain.mean.data();
    if (scale) codec.inv_scale = plain.inv_scale.data();
  }
  Head(const Head&) = delete;

  Coded Encode(const Encoder& encoder, const std::vector<float>& rows) const {
    const size_t n = rows.size() / static_cast<size_t>(codec.d);
    Coded coded = {std::vector<uint8_t>(rows.size(), 0xee), std::vector<uint16_t>(n, 0xeeee)};
    std::vector<float> scratch(encoder.ScratchFloats(codec.d));
    EXPECT_TRUE(encoder.Encode(codec, rows.data(), n, coded.codes.data(), coded.scales.data(), scratch.data()));
    return coded;
  }
  Coded Reference(const std::vector<float>& rows) const {
    Coded coded;
    for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(codec.d)) {
      const reference::PlainRow row = reference::PlainEncode(plain, &rows[at]);
      coded.codes.insert(coded.codes.end(), row.codes.begin(), row.codes.end());
      coded.scales.push_back(row.scale);
    }
    return coded;
  }

  RotationOp rotation;
  HeadCodec codec;
  reference::PlainCodec plain;
};

class Encoders : public testing::Test {
 protected:
  ~Encoders() override { ForceSimdTarget(""); }

  // Every encoder gives what the reference gives.
  void ExpectSame(const Head& head, const std::vector<float>& rows) {
    const Coded expected = head.Reference(rows);
    ASSERT_EQ(head.Encode(*scalar_, rows), expected) << "row by row";
    for (const std::string& target : targets_) {
      ForceSimdTarget(target);
      ASSERT_EQ(head.Encode(*simd_, rows), expected) << target;
    }
  }

  const std::vector<std::string> targets_ = SimdTargets();
  const std::unique_ptr<const Encoder> scalar_ = MakeScalarEncoder(), simd_ = MakeSimdEncoder();
};

// Gaussian, f16 and small-integer values, one-hot and spiky rows, wide ranges of exponents.
std::vector<float> MixedRows(uint64_t seed, size_t n, int d) {
  std::vector<float> rows = reference::GaussianRows(seed, n, d);
  reference::Random random(seed + 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t row = i / static_cast<size_t>(d), c = i % static_cast<size_t>(d);
    float& v = rows[i];
    switch (row % 8) {
      case 0:
        v = std::nearbyint(v * 1024.0f) / 1024.0f;
        break;
      case 1:
        v = std::nearbyint(2.0f * v);
        break;
      case 2:
        v = std::ldexp(v, static_cast<int>(random.Below(30)) - 15);
        break;
      case 3:
        if (c != row % static_cast<size_t>(d)) v = 0;
        break;
      case 4:
        if (c % 37 == 5) v *= 30.0f;
        break;
      default:
        break;
    }
  }
  return rows;
}

TEST_F(Encoders, SameBitsOnEveryTarget) {
  uint64_t seed = 1;
  size_t values = 0;
  for (const int bits : kLloydMaxBits) {
    for (const int d : kDims) {
      for (const RotationKind kind : kKinds) {
        const size_t n = kind == RotationKind::kHaar ? 19 : 10000 / static_cast<size_t>(d) | 1;  // odd
        for (const NormMode norm : kNorms) {
          for (int with = 0; with < 4; ++with) {
            const Head head(d, bits, norm, kind, with & 1, with & 2);
            const std::vector<float> rows = MixedRows(seed += 2, n, d);
            values += rows.size();
            ExpectSame(head, rows);
            ASSERT_FALSE(HasFatalFailure()) << bits << " bits, d " << d << ", rotation " << static_cast<int>(kind)
                                            << ", norm " << static_cast<int>(norm) << ", with " << with;
          }
        }
      }
    }
  }
  EXPECT_GE(values, 10'000'000u);
}

// Orders with a Paley factor.
TEST_F(Encoders, SameBitsForEveryHadamardOrder) {
  uint64_t seed = 1000;
  for (const int d : {80, 96, 112, 144, 160, 192, 320, 576}) {
    for (const RotationKind kind : {RotationKind::kHadamard, RotationKind::kHadamard2}) {
      for (const int bits : {2, 4, 8}) {
        const Head head(d, bits, NormMode::kUnbiased, kind, true, true);
        ExpectSame(head, MixedRows(seed += 2, 10000 / static_cast<size_t>(d) | 1, d));
        ASSERT_FALSE(HasFatalFailure()) << bits << " bits, d " << d << ", rotation " << static_cast<int>(kind);
      }
    }
  }
}

TEST_F(Encoders, AnyNumberOfRows) {
  for (const int bits : {4, 8}) {
    const Head head(64, bits, NormMode::kUnbiased, RotationKind::kHadamard, true, true);
    for (size_t n = 1; n <= 35; ++n) ExpectSame(head, MixedRows(n, n, 64));
    EXPECT_EQ(head.Encode(*simd_, {}), Coded());
  }
}

// A row that isn't finite stops the encoder, wherever it is; rows after the last in a block of lanes don't count.
TEST_F(Encoders, RowsThatCannotBeCoded) {
  for (const std::string& target : targets_) {
    ForceSimdTarget(target);
    for (const Encoder* encoder : {scalar_.get(), simd_.get()}) {
      for (const int bits : kLloydMaxBits) {
        const Head head(32, bits, NormMode::kLs, RotationKind::kHadamard, false, false);
        std::vector<float> scratch(encoder->ScratchFloats(32));
        std::vector<uint8_t> codes(21 * 32);
        std::vector<uint16_t> scales(21);
        for (const float bad : {NAN, INFINITY, -INFINITY, 2e19f}) {
          for (const size_t at : {0, 17, 15 * 32 + 31, 20 * 32 + 31}) {
            std::vector<float> rows = reference::GaussianRows(1, 21, 32);
            rows[at] = bad;
            EXPECT_FALSE(encoder->Encode(head.codec, rows.data(), 21, codes.data(), scales.data(), scratch.data()));
          }
        }
      }
    }
  }
}

TEST_F(Encoders, ExtremeRows) {
  for (const int bits : kLloydMaxBits) {
    for (const NormMode norm : kNorms) {
      for (const RotationKind kind : kKinds) {
        const Head head(64, bits, norm, kind, false, false);
        std::vector<float> rows;
        for (const float factor :
             {0.0f, 1e-45f, 1e-38f, 1e-23f, 3e-23f, 1e-22f, 1e-20f, 1e-19f, 1e10f, 1e17f, 5e17f, 1e18f}) {
          for (float v : reference::GaussianRows(3, 3, 64)) rows.push_back(v * factor);
        }
        ExpectSame(head, rows);
      }
    }
  }
}

// The mean is far from zero: lanes without a row must not overflow in its place.
TEST_F(Encoders, HugeMean) {
  Head head(64, 4, NormMode::kLs, RotationKind::kHadamard, true, false);
  for (float& m : head.plain.mean) m = 0x1p66f;
  std::vector<float> rows = reference::GaussianRows(4, 5, 64);
  for (float& v : rows) v = 0x1p66f + std::nearbyint(v * 8.0f) * 0x1p44f;
  ExpectSame(head, rows);
}

}  // namespace
}  // namespace tersekv
