// SPDX-License-Identifier: Apache-2.0
// Canonical records: their bytes are the format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "src/base/half.h"
#include "src/bits/pack.h"
#include "src/codec/list.h"
#include "src/codec/lloyd_max.h"
#include "src/cpu/encoder.h"
#include "tersekv/codec.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<VectorCodec> Make(const std::string& spec, Kv side, int d, int layer = 0, int kv_head = 0,
                                  RowStats stats = {}) {
  return VectorCodec::Create(ParseSpec(spec).value(), side, d, layer, kv_head, std::move(stats)).value();
}

std::string Uniform(int bits) { return "k" + std::to_string(bits) + "v" + std::to_string(bits); }

std::vector<uint8_t> Records(const VectorCodec& codec, const std::vector<float>& rows, size_t n) {
  std::vector<uint8_t> records(n * codec.record_bytes() + 1, 0x5a);
  EXPECT_TRUE(codec.Encode(rows.data(), n, records.data()).ok());
  EXPECT_EQ(records.back(), 0x5a);
  records.pop_back();
  return records;
}

std::string Hex(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (const uint8_t b : bytes) {
    for (const int digit : {b >> 4, b & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

// The row i/16 - 1, i = 0..31. A change of one of these strings is a change of the format: files become unreadable.
TEST(VectorCodec, GoldenRecords) {
  std::vector<float> row;
  for (int i = 0; i < 32; ++i) row.push_back(static_cast<float>(i) / 16.0f - 1.0f);
  const struct {
    const char *spec, *k, *v;
  } golden[] = {
      {"k2v2", "589551c951e54dd51a3c", "445639b129a05476fe3b"},
      {"k3v3", "e924a9c336c682a6d17326cd413c", "51c46de2b3b863939491c6593b3c"},
      {"k4v4", "b34745b5177686d3046465c8c77355d6743c", "43536966842d37ac962a238b5374694d7f3c"},
      {"k5v5", "c7beb4d2b26eb8c7e2d12924a718bc2e9fb716d3a23c", "2699359b630aeef24ea66dd672888547a527d94ea13c"},
      {"k6v6", "0ffb4d9764b5ddc17d98f8ccd320711516beddfc7cd695d5a63c",
       "ccc45ce7c66114682b9e33a3dba9324fd2864e257924664ba33c"},
      {"k7v7", "a4a96f254bc1aabb49ce471b92c22b402af7a209b1bb2fc90793d9c8d13c",
       "0d5063059dd95c23a0bfb09bc4a733287651198487135367b774ed3b873c"},
      {"k8v8", "49a77d57655461aa7626737d688849c3570054735e6884b176bf497d61656cca503c",
       "1b411b56a2676c5c4682fe0b7726e3a867a2b2162b05c387264c3b77975cf93b063c"},
      {"f16",
       "00bc80bb00bb80ba00ba80b900b980b800b800b700b600b500b400b200b000ac"
       "0000002c0030003200340035003600370038803800398039003a803a003b803b",
       nullptr},
      {"bf16",
       "80bf70bf60bf50bf40bf30bf20bf10bf00bfe0bec0bea0be80be40be00be80bd"
       "0000803d003e403e803ea03ec03ee03e003f103f203f303f403f503f603f703f",
       nullptr},
  };
  for (const auto& g : golden) {
    EXPECT_EQ(Hex(Records(*Make(g.spec, Kv::kK, 32), row, 1)), g.k) << g.spec;
    EXPECT_EQ(Hex(Records(*Make(g.spec, Kv::kV, 32), row, 1)), g.v == nullptr ? g.k : g.v) << g.spec;
  }
}

TEST(VectorCodec, RecordIsPackedCodesThenTheScale) {
  constexpr int kDim = 64;
  const std::vector<float> rows = reference::GaussianRows(1, 20, kDim);
  for (const int bits : kLloydMaxBits) {
    const auto codec = Make(Uniform(bits), Kv::kV, kDim, 3, 2);
    const size_t size = static_cast<size_t>(kDim * bits / 8 + 2);
    ASSERT_EQ(codec->record_bytes(), size);
    const std::vector<uint8_t> records = Records(*codec, rows, 20);
    const RotationOp rotation(RotationKind::kHadamard, 0, 3, 2, true, kDim);
    HeadCodec head;
    head.d = kDim;
    head.bits = bits;
    head.norm = NormMode::kLs;  // the default of V
    head.rotation = &rotation;
    head.sqrt_d = 8;
    const auto encoder = MakeScalarEncoder();
    std::vector<uint8_t> codes(rows.size());
    std::vector<uint16_t> scales(20);
    std::vector<float> scratch(encoder->ScratchFloats(kDim));
    ASSERT_TRUE(encoder->Encode(head, rows.data(), 20, codes.data(), scales.data(), scratch.data()));
    std::vector<float> back(rows.size());
    codec->Decode(records.data(), 20, back.data());
    for (size_t i = 0; i < 20; ++i) {
      std::vector<uint8_t> expected(size);
      PackBits(&codes[i * kDim], kDim, bits, expected.data());
      expected[size - 2] = static_cast<uint8_t>(scales[i] & 0xff);
      expected[size - 1] = static_cast<uint8_t>(scales[i] >> 8);
      ASSERT_EQ(std::vector<uint8_t>(&records[i * size], &records[i * size] + size), expected) << bits << " " << i;
      std::vector<float> row(kDim), spare(kDim);  // decodes to scale * R^T level
      for (size_t c = 0; c < kDim; ++c) row[c] = BF16ToF32(scales[i]) * LevelsOf(bits).level[codes[i * kDim + c]];
      rotation.ApplyTransposed(row.data(), spare.data());
      ASSERT_EQ(std::vector<float>(&back[i * kDim], &back[i * kDim] + kDim), row) << bits << " " << i;
    }
  }
}

TEST(VectorCodec, SidesTakeTheirOwnWidthAndNorm) {
  const std::vector<float> rows = reference::GaussianRows(2, 8, 128);
  EXPECT_EQ(Make("k4v3", Kv::kK, 128)->record_bytes(), 66u);
  EXPECT_EQ(Make("k4v3", Kv::kV, 128)->record_bytes(), 50u);
  EXPECT_EQ(Records(*Make("k4v3", Kv::kK, 128), rows, 8), Records(*Make("k4v2+norm=unbiased", Kv::kK, 128), rows, 8));
  EXPECT_EQ(Records(*Make("k4v3", Kv::kV, 128), rows, 8), Records(*Make("k5v3+norm=ls", Kv::kV, 128), rows, 8));
}

TEST(VectorCodec, LayerHeadSideAndSeedChooseTheSigns) {
  const std::vector<float> rows = reference::GaussianRows(3, 4, 64);
  const std::string spec = "k4v4+norm=ls";
  const std::vector<uint8_t> base = Records(*Make(spec, Kv::kK, 64), rows, 4);
  EXPECT_EQ(Records(*Make(spec, Kv::kK, 64), rows, 4), base);
  EXPECT_NE(Records(*Make(spec, Kv::kV, 64), rows, 4), base);
  EXPECT_NE(Records(*Make(spec, Kv::kK, 64, 1), rows, 4), base);
  EXPECT_NE(Records(*Make(spec, Kv::kK, 64, 0, 1), rows, 4), base);
  EXPECT_NE(Records(*Make(spec + "+seed=1", Kv::kK, 64), rows, 4), base);
  EXPECT_NE(Records(*Make(spec + "+rot=haar", Kv::kK, 64), rows, 4),
            Records(*Make(spec + "+rot=haar+seed=1", Kv::kK, 64), rows, 4));
}

TEST(VectorCodec, RawTypesAreTheRoundedRow) {
  std::vector<float> rows = reference::GaussianRows(4, 7, 80);
  rows[5] = 0.0f;
  rows[6] = 1e-7f;
  for (const char* text : {"f32", "f16", "bf16"}) {
    const std::string name = text;
    const auto codec = Make(name, Kv::kK, 80);
    EXPECT_EQ(codec->record_bytes(), name == "f32" ? 320u : 160u);
    const std::vector<uint8_t> records = Records(*codec, rows, 7);
    std::vector<float> back(rows.size());
    codec->Decode(records.data(), 7, back.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      const float half = name == "f16" ? F16ToF32(F32ToF16(rows[i])) : BF16ToF32(F32ToBF16(rows[i]));
      ASSERT_EQ(back[i], name == "f32" ? rows[i] : half) << name << " " << i;
    }
  }
}

TEST(VectorCodec, NoRows) {
  for (const char* text : {"f16", "k4v4"}) {
    uint8_t record = 7;
    float row = 7;
    const auto codec = Make(text, Kv::kK, 64);
    EXPECT_TRUE(codec->Encode(&row, 0, &record).ok());
    codec->Decode(&record, 0, &row);
    EXPECT_EQ(record, 7);
    EXPECT_EQ(row, 7);
  }
}

Status WhyNot(const std::string& spec, int d, RowStats stats = {}) {
  return VectorCodec::Create(ParseSpec(spec).value(), Kv::kK, d, 0, 0, std::move(stats)).status();
}

TEST(VectorCodec, HeadDims) {
  for (const int d : {32, 64, 80, 96, 112, 128, 192, 256, 512, 576, 1024}) EXPECT_TRUE(WhyNot("k4v4", d).ok()) << d;
  for (const int d : {1, 16, 72, 176, 1000}) {
    EXPECT_EQ(WhyNot("k4v4", d).code(), StatusCode::kUnsupported) << d;
    EXPECT_TRUE(WhyNot("f16", d).ok()) << d;
  }
  EXPECT_THAT(WhyNot("k4v4", 72).message(), HasSubstr("head_dim 72"));
  EXPECT_THAT(WhyNot("k4v4", 72).message(), HasSubstr("f16"));        // the remedy
  EXPECT_THAT(WhyNot("k4v4", 176).message(), HasSubstr("rot=none"));  // 11 * 16 has no Hadamard transform
  EXPECT_TRUE(WhyNot("k4v4+rot=none", 176).ok());
  EXPECT_THAT(WhyNot("q8_0", 80).message(), HasSubstr("blocks of 32"));
  for (const int d : {-1, 0, 1025, 2048}) {
    EXPECT_EQ(WhyNot("k4v4", d).code(), StatusCode::kInvalidArgument) << d;
    EXPECT_EQ(WhyNot("f16", d).code(), StatusCode::kInvalidArgument) << d;
  }
  EXPECT_EQ(WhyNot("auto", 64).code(), StatusCode::kUnsupported);
}

TEST(VectorCodec, StatisticsThatCannotBe) {
  const std::vector<float> ones(64, 1.0f);
  EXPECT_TRUE(WhyNot("k4v4", 64, {ones, ones}).ok());
  EXPECT_TRUE(WhyNot("k4v4", 64, {ones, {}}).ok());
  EXPECT_TRUE(WhyNot("k4v4", 64, {{}, ones}).ok());
  for (const size_t size : {1, 63, 65}) {
    const std::vector<float> wrong(size, 1.0f);
    EXPECT_EQ(WhyNot("k4v4", 64, {wrong, {}}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(WhyNot("k4v4", 64, {{}, wrong}).code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(WhyNot("k4v4", 64, {{}, wrong}).message(), HasSubstr("the head has 64"));
  }
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> scale = ones;
    scale[63] = bad;
    EXPECT_EQ(WhyNot("k4v4", 64, {ones, scale}).code(), StatusCode::kInvalidArgument) << bad;
    if (!std::isfinite(bad)) {
      EXPECT_EQ(WhyNot("k4v4", 64, {scale, ones}).code(), StatusCode::kInvalidArgument) << bad;
    }
  }
}

// A row whose scale would not fit f16 is refused; bf16 ends where rounding reaches infinity.
TEST(VectorCodec, ScalesThatOverflowAreRefused) {
  for (const char* spec : {"q8_0", "q5_0", "q4_0", "iq4_nl"}) {
    const auto codec = Make(spec, Kv::kK, 32);
    std::vector<uint8_t> record(codec->record_bytes());
    for (const float size : {1.0f, 65504.0f, 1e9f}) {
      const std::vector<float> row(32, size);
      EXPECT_EQ(codec->Encode(row.data(), 1, record.data()).ok(), size < 1e9f) << spec << " " << size;
    }
  }
  const auto bf16 = Make("bf16", Kv::kK, 1);
  uint8_t record[2];
  for (const float v : {0x1.fep127f, 0x1.fefffep127f, 0x1.ffp127f}) {
    EXPECT_EQ(bf16->Encode(&v, 1, record).ok(), v < 0x1.ffp127f) << v;
  }
}

// Pages that are not full decode as far as asked, and nothing behind is touched.
TEST(VectorCodec, PartOfAPageRecord) {
  const auto codec = Make("kivi-k4v4", Kv::kK, 32);
  ASSERT_EQ(codec->record_rows(), 128u);
  const std::vector<float> rows = reference::GaussianRows(3, 128, 32);
  std::vector<uint8_t> record(codec->record_bytes());
  ASSERT_TRUE(codec->Encode(rows.data(), 128, record.data()).ok());
  EXPECT_EQ(codec->Encode(rows.data(), 127, record.data()).code(), StatusCode::kInvalidArgument);
  std::vector<float> all(128 * 32), some(128 * 32, 7.0f), products(128, 7.0f);
  codec->Decode(record.data(), 128, all.data());
  codec->Decode(record.data(), 3, some.data());
  codec->InnerProducts(record.data(), 3, rows.data(), products.data());
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i], i < 3 * 32 ? all[i] : 7.0f) << i;
  for (size_t i = 3; i < 128; ++i) EXPECT_EQ(products[i], 7.0f);
}

TEST(VectorCodec, ThreadsShareACodec) {
  const std::vector<float> rows = reference::GaussianRows(5, 200, 64);
  const auto codec = Make("k4v4+rot=haar", Kv::kK, 64);
  const std::vector<uint8_t> expected = Records(*codec, rows, 200);
  std::vector<std::vector<uint8_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = Records(*codec, rows, 200); });
  for (std::thread& t : threads) t.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Codecs, SelfTestPasses) { EXPECT_EQ(SelfTestCodecs().ToString(), Status().ToString()); }

TEST(Codecs, ListNamesWhatCanBeMade) {
  for (const CodecInfo& codec : ListCodecs()) EXPECT_EQ(WhyNot(codec.spec, 64).ToString(), "OK") << codec.spec;
}

}  // namespace
}  // namespace tersekv
