// SPDX-License-Identifier: Apache-2.0
// VectorCodec::InnerProducts against double precision over decoded vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tersekv/codec.h"
#include "tests/reference/rows.h"

namespace tersekv {
namespace {

struct Case {
  std::string spec;
  int d = 0;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const CodecInfo& info : ListCodecs()) {
    for (const int d : {64, 128}) cases.push_back({info.spec, d});
  }
  for (const char* spec : {"k4v4+rot=h2", "k4v4+rot=haar", "k3v3+rot=none", "k4pv4p+rot=haar", "mxfp4+rot=h1"}) {
    cases.push_back({spec, 64});
  }
  cases.push_back({"f16", 50});
  return cases;
}

TEST(InnerProducts, AreThoseOfTheDecodedVectors) {
  constexpr size_t kRows = 128;
  for (const Case& c : Cases()) {
    const KvSpec spec = ParseSpec(c.spec).value();
    const size_t d = static_cast<size_t>(c.d);
    std::vector<float> rows = reference::GaussianRows(7, kRows, c.d);
    const std::vector<float> query = reference::GaussianRows(8, 1, c.d);
    for (size_t i = 0; i < rows.size(); ++i) {  // a mean far from 0 and scales between .1 and 10
      rows[i] *= std::pow(10.0f, static_cast<float>(i % d * 7 % 11) / 5 - 1);
      rows[i] += static_cast<float>(i % d % 5) - 3;
    }
    for (const Kv side : {Kv::kK, Kv::kV}) {
      for (const bool with_stats : {false, true}) {
        RowStats stats;
        if (with_stats && !spec.raw()) {
          KvSpec measured = spec;
          measured.mean = MeanMode::kStats;
          measured.scale = true;
          stats = MeasureRowStats(measured, Kv::kK, c.d, rows.data(), kRows);
          ASSERT_EQ(stats.scale.size(), d);
        }
        const auto codec = VectorCodec::Create(spec, side, c.d, 2, 1, stats).value();
        EXPECT_EQ(codec->head_dim(), c.d);
        std::vector<uint8_t> records(kRows / codec->record_rows() * codec->record_bytes());
        ASSERT_TRUE(codec->Encode(rows.data(), kRows, records.data()).ok());
        std::vector<float> decoded(rows.size()), products(kRows);
        codec->Decode(records.data(), kRows, decoded.data());
        codec->InnerProducts(records.data(), kRows, query.data(), products.data());
        double query_power = 0;
        for (const float q : query) query_power += static_cast<double>(q) * static_cast<double>(q);
        for (size_t i = 0; i < kRows; ++i) {
          double expected = 0, power = 0;
          for (size_t j = 0; j < d; ++j) {
            const double x = decoded[i * d + j];
            expected += static_cast<double>(query[j]) * x;
            power += x * x;
          }
          // Scales of up to 100 between channels enlarge the rounding of the rotation.
          const double bound = (with_stats ? 1e-4 : 4e-6) * std::sqrt(power * query_power);
          ASSERT_NEAR(static_cast<double>(products[i]), expected, bound) << c.spec << " d " << c.d << " row " << i;
        }
      }
    }
  }
}

TEST(InnerProducts, NoRows) {
  const auto codec = VectorCodec::Create(ParseSpec("k4v4").value(), Kv::kK, 64).value();
  const std::vector<float> query(64, 1.0f);
  float out = 7;
  codec->InnerProducts(nullptr, 0, query.data(), &out);
  EXPECT_EQ(out, 7);
}

}  // namespace
}  // namespace tersekv
