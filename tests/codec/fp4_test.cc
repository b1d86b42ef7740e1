// SPDX-License-Identifier: Apache-2.0
#include "src/codec/fp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/abs_max.h"
#include "tests/reference/block_rows.h"
#include "tests/reference/record_rows.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/fp4-inl.h"

namespace tersekv {
namespace {

constexpr int kDims[] = {64, 128, 256};
constexpr double kE2M1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};

template <class Tag>
std::vector<uint8_t> Encode(Tag tag, const std::vector<float>& rows, int d) {
  return reference::EncodeRows(tag, rows, d, [](auto&&... a) { plain::EncodeRecord(a...); });
}
template <class Tag>
std::vector<float> Decode(Tag tag, const std::vector<uint8_t>& records, int d) {
  return reference::DecodeRows(tag, records, d, [](auto&&... a) { plain::DecodeRecord(a...); });
}

// The reference works in double precision and rounds each result to fp32, as one IEEE operation would.
float R(double v) { return static_cast<float>(v); }

// The code of `values` [n] nearest to v >= 0, ties to the even one.
template <class Values>
int NearestCode(double v, int n, Values&& values) {
  int best = 0;
  v = std::min(v, static_cast<double>(values(n - 1)));
  for (int code = 1; code < n; ++code) {
    const double gain = std::fabs(v - values(best)) - std::fabs(v - values(code));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return best;
}
int NearestE2M1(double v) {
  return NearestCode(std::fabs(v), 8, [](int code) { return kE2M1[code]; }) | (std::signbit(v) ? 8 : 0);
}
double E4M3Value(int code) { return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10); }

struct Block {
  int scale = 0;
  double scale_value = 0;
  std::vector<int> codes;
};

double Largest(const float* y, int n) {
  double largest = 0;
  for (int c = 0; c < n; ++c) largest = std::max(largest, std::fabs(static_cast<double>(y[c])));
  return largest;
}

Block ReferenceOf(Mxfp4, const float* y) {
  Block block;
  const double largest = Largest(y, 32);
  const int exponent = largest == 0 ? -127 : std::clamp(std::ilogb(largest) - 2, -127, 127);
  block.scale = exponent + 127;
  block.scale_value = std::ldexp(1.0, exponent);
  for (int c = 0; c < 32; ++c) block.codes.push_back(NearestE2M1(static_cast<double>(y[c]) / block.scale_value));
  return block;
}

Block ReferenceOf(Nvfp4, const float* y) {
  Block blocks[2];
  float errors[2];
  for (int i = 0; i < 2; ++i) {
    Block& block = blocks[i];
    const double target = static_cast<double>(R(Largest(y, 16) / (i == 0 ? 6 : 4)));
    block.scale = NearestCode(target, 127, E4M3Value);
    block.scale_value = E4M3Value(block.scale);
    float squares[16];
    for (int c = 0; c < 16; ++c) {
      const double v = static_cast<double>(y[c]);
      const int code =
          block.scale == 0 ? (std::signbit(v) ? 8 : 0) : NearestE2M1(static_cast<double>(R(v / block.scale_value)));
      block.codes.push_back(code);
      const double back = (code & 8 ? -kE2M1[code & 7] : kE2M1[code & 7]) * block.scale_value;
      const double difference = static_cast<double>(R(v - back));
      squares[c] = R(difference * difference);
    }
    const auto sum = [&](auto&& self, int at, int stride) -> float {
      if (stride == 16) return squares[at];
      return R(static_cast<double>(self(self, at, 2 * stride)) +
               static_cast<double>(self(self, at + stride, 2 * stride)));
    };
    errors[i] = sum(sum, 0, 1);
  }
  return blocks[errors[1] < errors[0] ? 1 : 0];
}

template <class Tag>
class Fp4 : public testing::Test {};
class Names {
 public:
  template <class Tag>
  static std::string GetName(int) {
    return std::string(RowOf(Tag::kFamily).name);
  }
};
using Tags = testing::Types<Mxfp4, Nvfp4>;
TYPED_TEST_SUITE(Fp4, Tags, Names);

TYPED_TEST(Fp4, RecordsHaveTheListedSize) {
  for (const int d : kDims) {
    EXPECT_EQ(static_cast<double>(TypeParam::Bytes(reference::ShapeOf(d))),
              reference::ListedBytes(TypeParam::kFamily, d));
  }
}

TYPED_TEST(Fp4, BytesAndValuesAreTheReferences) {
  constexpr int kBlock = TypeParam::kBlock;
  for (const int d : kDims) {
    const size_t n = 4200, bytes = TypeParam::Bytes(reference::ShapeOf(d));
    const std::vector<float> rows = reference::BlockRows(static_cast<uint64_t>(d), n, d);
    const std::vector<uint8_t> records = Encode(TypeParam(), rows, d);
    const std::vector<float> back = Decode(TypeParam(), records, d);
    for (size_t i = 0; i < n; ++i) {
      std::vector<uint8_t> codes, scales;
      std::vector<float> values;
      for (int b = 0; b < d / kBlock; ++b) {
        const Block block =
            ReferenceOf(TypeParam(), &rows[i * static_cast<size_t>(d) + static_cast<size_t>(b * kBlock)]);
        for (size_t c = 0; c < kBlock; c += 2) {
          codes.push_back(static_cast<uint8_t>(block.codes[c] + 16 * block.codes[c + 1]));
        }
        for (const int code : block.codes) {
          values.push_back(R((code & 8 ? -1 : 1) * kE2M1[code & 7] * block.scale_value));
        }
        scales.push_back(static_cast<uint8_t>(block.scale));
      }
      codes.insert(codes.end(), scales.begin(), scales.end());
      ASSERT_EQ(std::memcmp(&records[i * bytes], codes.data(), bytes), 0) << "row " << i << " of d " << d;
      for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
        ASSERT_EQ(back[i * static_cast<size_t>(d) + c], values[c]) << "row " << i << " of d " << d;
      }
    }
  }
}

TYPED_TEST(Fp4, DistortionOfGaussianRows) {
  const double expected = TypeParam::kFamily == Family::kMxfp4 ? .0132 : .00755;
  for (const int d : kDims) {
    const std::vector<float> rows = reference::GaussianRows(static_cast<uint64_t>(d), (1u << 18) / d, d);
    const double nmse = reference::Nmse(rows, Decode(TypeParam(), Encode(TypeParam(), rows, d), d));
    std::printf("%s, d %d: NMSE %.4g\n", RowOf(TypeParam::kFamily).name.data(), d, nmse);
    EXPECT_NEAR(nmse / expected, 1, 0.03) << d << ": " << nmse;
  }
}

TYPED_TEST(Fp4, ZeroRows) {
  const std::vector<uint8_t> record = Encode(TypeParam(), std::vector<float>(64, 0.0f), 64);
  EXPECT_EQ(record, std::vector<uint8_t>(record.size(), 0));
  EXPECT_EQ(Decode(TypeParam(), record, 64), std::vector<float>(64, 0.0f));
  EXPECT_EQ(Decode(TypeParam(), Encode(TypeParam(), std::vector<float>(64, -0.0f), 64), 64),
            std::vector<float>(64, 0.0f));
}

// Every value of E2M1 under every scale that makes it exact comes back.
TEST(Fp4Codes, EveryCodeUnderEveryScale) {
  for (int scale = 0; scale < 253; ++scale) {
    std::vector<float> rows(32);
    for (size_t c = 0; c < 32; ++c) rows[c] = std::ldexp(E2M1ToF32(static_cast<uint8_t>(c)), scale - 127);
    const std::vector<uint8_t> record = Encode(Mxfp4(), rows, 32);
    EXPECT_EQ(record[16], scale);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(record[i], 0x10 + 0x22 * (i % 8)) << i;
    EXPECT_EQ(Decode(Mxfp4(), record, 32), rows) << scale;
  }
  for (int scale = 1; scale < 0x7f; ++scale) {
    std::vector<float> rows(16);
    for (uint8_t c = 0; c < 16; ++c) rows[c] = E2M1ToF32(c) * E4M3ToF32(static_cast<uint8_t>(scale));
    const std::vector<uint8_t> record = Encode(Nvfp4(), rows, 16);
    EXPECT_EQ(record[8], scale);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(record[i], 0x10 + 0x22 * i) << i;
    EXPECT_EQ(Decode(Nvfp4(), record, 16), rows) << scale;
  }
}

TEST(Fp4Codes, LargestAndSmallest) {
  std::vector<float> rows(32, 7.9f);
  rows[1] = -7.9f;
  EXPECT_EQ(Decode(Mxfp4(), Encode(Mxfp4(), rows, 32), 32)[1], -6.0f);  // the OCP rule saturates
  rows.assign(32, 3.4e38f);
  EXPECT_EQ(Decode(Mxfp4(), Encode(Mxfp4(), rows, 32), 32)[0], 0x1.8p127f);
  rows.assign(32, 1e-45f);
  EXPECT_EQ(Decode(Mxfp4(), Encode(Mxfp4(), rows, 32), 32)[0], 0.0f);
  // NVFP4 with a tensor's scale of 1 ends at 6 * 448 and at 2^-8.
  rows.assign(32, 1e5f);
  EXPECT_EQ(Decode(Nvfp4(), Encode(Nvfp4(), rows, 32), 32)[0], 2688.0f);
  rows.assign(32, 0x1p-8f);
  EXPECT_EQ(Decode(Nvfp4(), Encode(Nvfp4(), rows, 32), 32)[0], 0.0f);
  rows.assign(32, 0x1.000002p-8f);
  EXPECT_EQ(Decode(Nvfp4(), Encode(Nvfp4(), rows, 32), 32)[0], 0x1p-8f);
}

// A block that a quarter serves better, and one where both errors are equal.
TEST(Fp4Codes, NvfpScaleOfAQuarter) {
  std::vector<float> rows(16, 3.0f);
  rows[0] = 4.0f;  // /4: exact under a scale of 1
  EXPECT_EQ(Encode(Nvfp4(), rows, 16)[8], 0x38);
  rows.assign(16, 12.0f);  // exact under 2 (a sixth) and under 3 (a quarter)
  EXPECT_EQ(Encode(Nvfp4(), rows, 16)[8], 0x40);
}

TEST(Fp4Codes, GoldenRecords) {
  std::vector<float> rows(32);
  for (int c = 0; c < 32; ++c) rows[static_cast<size_t>(c)] = static_cast<float>((c * 37 + 11) % 64) * 0.125f - 4.0f;
  const std::vector<uint8_t> mxfp4 = {0x4d, 0x5b, 0xe8, 0xc2, 0xa4, 0x06, 0x3d, 0x5c, 0xe9,
                                      0xd1, 0xb4, 0x85, 0x2e, 0x4c, 0x6a, 0xd0, 0x7f};
  const std::vector<uint8_t> nvfp4 = {0x4d, 0x6b, 0xe8, 0xd3, 0xa5, 0x16, 0x3e, 0x5c, 0xe9,
                                      0xd1, 0xb4, 0x85, 0x2e, 0x4c, 0x6a, 0xd0, 0x36, 0x38};
  EXPECT_EQ(Encode(Mxfp4(), rows, 32), mxfp4);
  EXPECT_EQ(Encode(Nvfp4(), rows, 32), nvfp4);
  const std::vector<float> many = reference::IntegerRows(1, 4096, 128);
  EXPECT_EQ(reference::HashOf(Encode(Mxfp4(), many, 128)), 0x85b3b501227f26d2u);
  EXPECT_EQ(reference::HashOf(Encode(Nvfp4(), many, 128)), 0x927c3c9d23f5c90eu);
}

}  // namespace
}  // namespace tersekv
