// SPDX-License-Identifier: Apache-2.0
// What the status port tells, without a port: bytes by slot, who shares pages, and the forms.
#include "hosts/llama/preload/status_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "hosts/llama/preload/http_server.h"

namespace tersekv::llama::preload {
namespace {

using ::testing::HasSubstr;

void Append(KvCache* cache, int32_t seq, int n) {
  std::vector<StepToken> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back({seq, cache->LastPosition(seq) + 1 + i});
  std::vector<float> rows(static_cast<size_t>(n) * 64);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * 2654435761u) % 1000) / 500 - 1;
  ASSERT_TRUE(cache->BeginStep(tokens).ok());
  for (const int layer : {0, 1}) {
    for (const Kv side : {Kv::kK, Kv::kV}) cache->WriteRows(layer, side, rows.data(), 64 * sizeof(float), 0, 1);
  }
  ASSERT_TRUE(cache->EndStep().ok());
}

TEST(StatusReport, SlotsSayWhatTheyShare) {
  CacheConfig config;
  config.spec = ParseSpec("k4v4").value();
  config.layers = {{2, 2, 32, 32}, {2, 2, 32, 32}};
  const std::unique_ptr<KvCache> cache = KvCache::Create(config).value();
  Append(cache.get(), 0, 700);
  ContextReport alone;
  DescribeSlots(*cache, &alone);
  ASSERT_EQ(alone.slots.size(), 1u);
  EXPECT_EQ(alone.slots[0].tokens, 700);
  EXPECT_EQ(alone.slots[0].shared_bytes, 0u);
  EXPECT_EQ(alone.pages_shared, 0);
  EXPECT_EQ(alone.slots[0].layers.size(), 2u);
  const size_t layers = std::accumulate(alone.slots[0].layers.begin(), alone.slots[0].layers.end(), size_t{0});
  EXPECT_EQ(alone.slots[0].bytes, layers + 700 * sizeof(int32_t));
  const CacheUsage usage = cache->Usage();
  EXPECT_GE(alone.slots[0].bytes, usage.pages + usage.raw_rows);
  EXPECT_LE(alone.slots[0].bytes, usage.bytes_used);

  ASSERT_TRUE(cache->Fork(0, 3).ok());
  Append(cache.get(), 3, 1);
  ContextReport both;
  DescribeSlots(*cache, &both);
  ASSERT_EQ(both.slots.size(), 2u);
  EXPECT_EQ(both.slots[1].id, 3);
  EXPECT_EQ(both.slots[1].tokens, 701);
  EXPECT_GT(both.pages_shared, 0);
  EXPECT_LT(both.pages_shared, both.pages);  // the page that the new token went to is a copy
  EXPECT_EQ(both.slots[0].shared_bytes, both.slots[1].shared_bytes);
  EXPECT_LT(both.slots[0].shared_bytes, both.slots[0].bytes);
}

TEST(StatusReport, NamesOfModelsAreQuoted) {
  ProcessReport report;
  report.contexts.resize(1);
  report.contexts[0].id = 7;
  report.contexts[0].model = "a \"b\" \\ c\nd";
  EXPECT_THAT(ToPrometheus(report),
              HasSubstr("tersekv_bytes{model_name=\"a \\\"b\\\" \\\\ c\\nd\",engine=\"7\",kind=\"pages\"} 0\n"));
  EXPECT_THAT(ToJson(report), HasSubstr("\"model\": \"a \\\"b\\\" \\\\ c\\nd\""));
  report.contexts[0].model = "\xff\xfe";  // no UTF-8
  EXPECT_THAT(ToJson(report), HasSubstr("\"id\": 7"));
}

// Of builds without Boost.
TEST(StatusReport, NoServerIsAnError) {
  const Result<int> port = StartHttpServer("127.0.0.1", 0, [](std::string_view) { return HttpAnswer(); });
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().code(), StatusCode::kUnsupported);
  EXPECT_THAT(port.error().message(), HasSubstr("libboost-dev"));
}

}  // namespace
}  // namespace tersekv::llama::preload
