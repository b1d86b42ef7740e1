// SPDX-License-Identifier: Apache-2.0
// Every record codec of the list, with rotations, means and scales before it: the same bytes and the same decoded
// values on every SIMD target as in plain code.
#include "src/cpu/records.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "src/codec/record_list.h"
#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using reference::Random;

// Bases whose K or V side a tag serves, every width among them.
const char* const kBases[] = {
    "fp8",    "fp8-head", "fp8-tensor", "mxfp4",     "nvfp4",      "q8_0",          "q5_0",         "q4_0",   "iq4_nl",
    "k2tv2t", "k3tv3t",   "k4tv4t",     "k2qv2q",    "k2.5qv2.5q", "k3qv3q",        "k3.5qv3.5q",   "k4qv4q", "k2pv2p",
    "k3pv3p", "k4pv4p",   "k8pv8p",     "kivi-k4v4", "kivi-k2v3",  "kivi-k8v5-g32", "kivi-k3v2-g32"};

struct Rows {
  size_t n = 0;
  std::vector<float> values, mean, inv_scale;
};

// Gaussian rows of many magnitudes with an outlier now and then; some are zeros, small integers (ties) or one value.
Rows MakeRows(uint64_t seed, size_t n, int d) {
  Rows rows = {n, {}, {}, {}};
  Random random(seed);
  for (size_t t = 0; t < n; ++t) {
    const double size = std::exp2(random.Uniform() * 16 - 8);
    const size_t kind = random.Below(12);
    for (int c = 0; c < d; ++c) {
      double v = size * random.Gaussian() * (random.Below(40) == 0 ? 20 : 1);
      if (kind == 0) v = 0;
      if (kind == 1) v = static_cast<double>(random.Below(9)) - 4;
      if (kind == 2) v = c == 3 ? size : 0;
      rows.values.push_back(static_cast<float>(v));
    }
  }
  for (int c = 0; c < d; ++c) {
    rows.mean.push_back(static_cast<float>(random.Gaussian()));
    rows.inv_scale.push_back(static_cast<float>(std::exp2(random.Uniform() * 2 - 1)));
  }
  return rows;
}

struct Result {
  std::vector<uint8_t> records;
  std::vector<float> decoded;
  bool operator==(const Result& o) const {
    return records == o.records && std::memcmp(decoded.data(), o.decoded.data(), decoded.size() * sizeof(float)) == 0;
  }
};

template <class Encode, class Decode>
Result RunRecords(const HeadCodec& codec, const Rows& rows, Encode&& encode, Decode&& decode) {
  Result result;
  const size_t d = static_cast<size_t>(codec.d), page = static_cast<size_t>(codec.record.page_tokens);
  std::vector<float> scratch(RecordScratchFloats(codec.family, codec.side, codec.record));
  WithRecordTag(codec.family, codec.side, [&](auto tag) {
    const size_t bytes = tag.Bytes(codec.record) * (tag.kPage ? 1 : page);
    result.records.resize(rows.n / page * bytes);
    result.decoded.resize(rows.n * d);
    for (size_t t = 0; t < rows.n; t += page) {
      uint8_t* records = &result.records[t / page * bytes];
      EXPECT_TRUE(encode(codec, &rows.values[t * d], page, records, scratch.data()));
      decode(codec.family, codec.side, codec.record, records, 0, page, &result.decoded[t * d]);
    }
  });
  return result;
}

class Records : public ::testing::TestWithParam<const char*> {};

TEST_P(Records, AreTheSameOnEveryTarget) {
  int i = 0;
  for (const int d : {32, 64, 80, 96, 112, 128, 192, 256, 576}) {
    for (const char* rotation : {"none", "h1", "h2", "haar"}) {
      if (d > 192 && std::string(rotation) == "haar") continue;  // its matrix takes long to make
      for (const Kv side : {Kv::kK, Kv::kV}) {
        KvSpec spec = ParseSpec(GetParam() + std::string("+rot=") + rotation).value();
        if (d % RecordBlock(side == Kv::kK ? spec.k.family : spec.v.family, side) != 0) continue;
        const NormMode norms[] = {NormMode::kNone, NormMode::kMatch, NormMode::kLs, NormMode::kUnbiased};
        spec.k.norm = spec.v.norm = norms[++i % 4];
        const RotationKind kind = RotationKindOf(spec.rotation);
        const RotationOp op(kind, 5, 1, 2, side == Kv::kV, d, kind == RotationKind::kHaar ? HaarMatrix(5, d) : nullptr);
        const auto projection = ProjectionOf(spec, d);
        const Rows rows = MakeRows(static_cast<uint64_t>(i), 4 * static_cast<size_t>(spec.page), d);
        HeadCodec codec;
        codec.family = side == Kv::kK ? spec.k.family : spec.v.family;
        codec.side = side;
        codec.d = d;
        codec.sqrt_d = std::sqrt(static_cast<float>(d));
        codec.rotation = &op;
        codec.record = RecordShapeOf(spec, side, d);
        codec.record.projection = projection.get();
        if (i % 3 != 0) codec.mean = rows.mean.data();
        if (i % 2 != 0) codec.inv_scale = rows.inv_scale.data();
        if (i % 5 == 0) codec.page_mean = rows.mean.data();
        const Result plain = RunRecords(codec, rows, EncodeRecordsPlain, DecodeRecordsPlain);
        for (const std::string& target : SimdTargets()) {
          ForceSimdTarget(target);
          EXPECT_TRUE(RunRecords(codec, rows, EncodeRecordsSimd, DecodeRecordsSimd) == plain)
              << target << " d " << d << " rot " << rotation << " side " << static_cast<int>(side);
        }
        ForceSimdTarget("");
      }
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, Records, ::testing::ValuesIn(kBases), NameOf);

// Each tag is met by a base of this test.
TEST(RecordsList, EveryTagIsTested) {
  ForEachRecordTag([](auto tag) {
    bool found = false;
    for (const char* base : kBases) {
      const KvSpec spec = ParseSpec(base).value();
      found |= Serves(tag, spec.k.family, Kv::kK) || Serves(tag, spec.v.family, Kv::kV);
    }
    EXPECT_TRUE(found) << static_cast<int>(tag.kFamily);
  });
}

TEST(Records, RowsThatAreNotFiniteAreRefused) {
  const RotationOp op(RotationKind::kNone, 0, 0, 0, false, 32);
  for (const char* base : kBases) {
    const KvSpec spec = ParseSpec(base).value();
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const auto projection = ProjectionOf(spec, 32);
      HeadCodec codec;
      codec.family = side == Kv::kK ? spec.k.family : spec.v.family;
      codec.side = side;
      codec.d = 32;
      codec.sqrt_d = std::sqrt(32.0f);
      codec.rotation = &op;
      codec.record = RecordShapeOf(spec, side, 32);
      codec.record.projection = projection.get();
      const size_t n = static_cast<size_t>(spec.page);
      std::vector<float> scratch(RecordScratchFloats(codec.family, side, codec.record));
      std::vector<uint8_t> records(n * 256);
      for (const float bad : {NAN, INFINITY, 1e30f}) {
        std::vector<float> rows(n * 32, 1.0f);
        rows[32 * (n - 1) + 7] = bad;
        EXPECT_FALSE(EncodeRecordsSimd(codec, rows.data(), n, records.data(), scratch.data())) << base << " " << bad;
      }
    }
  }
}

}  // namespace
}  // namespace tersekv
