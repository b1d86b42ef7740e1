// SPDX-License-Identifier: Apache-2.0
// What `tersekv plan` says against caches that are filled as it says.
#include "cli/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tersekv/llama.h"

namespace tersekv::cli {
namespace {

std::string DemoModel() {
  const auto variable = [](const char* name, const std::string& otherwise) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? std::string(value) : otherwise;
  };
  const std::string cache =
      variable("TERSEKV_CACHE_DIR", variable("XDG_CACHE_HOME", variable("HOME", "/tmp") + "/.cache") + "/tersekv");
  return variable("TERSEKV_TEST_MODEL", cache + "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

// The model's shapes, empty when it is not here.
std::unique_ptr<llama::Session> OpenDemo() {
  if (!std::filesystem::exists(DemoModel())) return nullptr;
  llama::SessionOptions options;
  options.model_path = DemoModel();
  options.ctx = 256;
  options.self_test = false;
  auto session = llama::Session::Open(options);
  EXPECT_TRUE(session.has_value());
  return session ? std::move(*session) : nullptr;
}

// Appends tokens [begin, end) of noise to each of `sequences`; the first error.
Status Fill(KvCache* cache, int sequences, int64_t begin, int64_t end) {
  size_t width = 0;
  for (const LayerShape& s : cache->config().layers) {
    width = std::max(width, size_t(s.kv_heads) * size_t(std::max(s.head_dim_k, s.head_dim_v)));
  }
  std::vector<float> rows(512 * width);
  std::mt19937 random(1);
  for (float& x : rows) x = static_cast<float>(random() % 2001) / 1000 - 1;
  for (int seq = 0; seq < sequences; ++seq) {
    for (int64_t at = begin; at < end; at += 512) {
      std::vector<StepToken> step;
      for (int64_t t = at; t < std::min(at + 512, end); ++t) step.push_back({seq, static_cast<int32_t>(t)});
      if (Status s = cache->BeginStep(step); !s.ok()) return s;
      for (size_t l = 0; l < cache->config().layers.size(); ++l) {
        for (const Kv side : {Kv::kK, Kv::kV}) {
          cache->WriteRows(static_cast<int>(l), side, rows.data(), static_cast<ptrdiff_t>(width * sizeof(float)), 0, 1);
        }
      }
      if (Status s = cache->EndStep(); !s.ok()) return s;
    }
  }
  return {};
}

TEST(Plan, BytesAndTokensAreThoseOfFilledCaches) {
  const auto session = OpenDemo();
  if (session == nullptr) GTEST_SKIP() << DemoModel() << " is not here (scripts/setup.sh fetches it)";
  for (const char* kv : {"k4v4", "k8v4", "kivi-k4v4", "f16"}) {
    SCOPED_TRACE(kv);
    Result<CacheConfig> config = llama::SessionCacheConfig(session->model(), kv, nullptr, {});
    ASSERT_TRUE(config);
    config->windows.clear();
    const PlanQuestion question{size_t{64} << 20, {1, 3}, {600, 1024, 4096}};
    const Result<PlanRow> row = PlanPacked(*config, question);
    ASSERT_TRUE(row) << row.error().message();
    for (size_t i = 0; i < question.contexts.size(); ++i) {
      config->byte_budget = 0;
      const auto cache = KvCache::Create(*config);
      ASSERT_TRUE(cache);
      ASSERT_TRUE(Fill(cache->get(), 1, 0, question.contexts[i]).ok());
      const double used = static_cast<double>((*cache)->Usage().bytes_used);
      EXPECT_NEAR(static_cast<double>(row->bytes[i]), used, 0.02 * used) << question.contexts[i];
    }
    for (size_t i = 0; i < question.slots.size(); ++i) {
      SCOPED_TRACE(question.slots[i]);
      const int slots = static_cast<int>(question.slots[i]);
      config->byte_budget = question.bytes;
      const auto cache = KvCache::Create(*config);
      ASSERT_TRUE(cache);
      EXPECT_EQ(row->tokens[i] % 256, 0);
      const Status fits = Fill(cache->get(), slots, 0, row->tokens[i]);
      EXPECT_TRUE(fits.ok()) << fits.message();
      EXPECT_LE((*cache)->Usage().bytes_reserved, question.bytes);
      // 256 more are more than fit, but for 2%.
      const double bytes_a_token =
          static_cast<double>((*cache)->Usage().bytes_used) / static_cast<double>(slots * row->tokens[i]);
      const auto spare = static_cast<int64_t>(0.02 * static_cast<double>(question.bytes) / bytes_a_token / slots);
      EXPECT_EQ(Fill(cache->get(), slots, row->tokens[i], row->tokens[i] + 256 + spare).code(),
                StatusCode::kOutOfBudget);
    }
    for (size_t i = 0; i < question.contexts.size(); ++i) {
      if (question.contexts[i] == 600) continue;  // many slots take long
      const auto slots = static_cast<int>(row->slots[i]);
      config->byte_budget = question.bytes;
      const auto cache = KvCache::Create(*config);
      ASSERT_TRUE(cache);
      if (slots == 0) {
        EXPECT_EQ(Fill(cache->get(), 1, 0, question.contexts[i]).code(), StatusCode::kOutOfBudget);
        continue;
      }
      EXPECT_TRUE(Fill(cache->get(), slots, 0, question.contexts[i]).ok()) << slots;
      EXPECT_GT(static_cast<double>((*cache)->Usage().bytes_used) * (slots + 1) / slots,
                0.98 * static_cast<double>(question.bytes));
    }
  }
}

// As Fill, with rows of their own from token `prefix` on.
Status FillFromPrefix(KvCache* cache, int sequences, int64_t prefix, int64_t begin, int64_t end) {
  constexpr size_t kWidth = 128;
  std::vector<float> rows(512 * kWidth);
  for (int seq = 0; seq < sequences; ++seq) {
    for (int64_t at = begin; at < end; at += 512) {
      std::vector<StepToken> step;
      for (int64_t t = at; t < std::min(at + 512, end); ++t) {
        std::mt19937 random(static_cast<uint32_t>(t < prefix ? t : t + (seq + 1) * 1000003));
        for (size_t i = 0; i < kWidth; ++i) {
          rows[step.size() * kWidth + i] = static_cast<float>(random() % 2001) / 1000 - 1;
        }
        step.push_back({seq, static_cast<int32_t>(t)});
      }
      if (Status s = cache->BeginStep(step); !s.ok()) return s;
      for (const int layer : {0, 1}) {
        for (const Kv side : {Kv::kK, Kv::kV}) {
          cache->WriteRows(layer, side, rows.data(), static_cast<ptrdiff_t>(kWidth * sizeof(float)), 0, 1);
        }
      }
      if (Status s = cache->EndStep(); !s.ok()) return s;
    }
  }
  return {};
}

// Starts that are the same, and layers with a window: what is said fits, and little more does.
TEST(Plan, StartsAndWindowsAreCounted) {
  constexpr int kSlots = 4;
  std::vector<int64_t> tokens;
  for (const bool window : {false, true}) {
    for (const int64_t prefix : {0, 1500}) {
      SCOPED_TRACE(testing::Message() << "prefix " << prefix << (window ? ", window" : ""));
      CacheConfig config;
      config.spec = *ParseSpec("k4v4");
      config.layers = {{4, 2, 64, 64}, {4, 2, 64, 64}};
      if (window) config.windows = {300, 0};
      config.keep_back = 64 + 512;
      PlanQuestion question{size_t{3} << 20, {kSlots}, {2048}};
      question.prefix = prefix;
      const Result<PlanRow> row = PlanPacked(config, question);
      ASSERT_TRUE(row) << row.error().message();
      tokens.push_back(row->tokens[0]);
      config.keep_back = 64;
      config.share_pages = true;
      config.byte_budget = question.bytes;
      const auto cache = KvCache::Create(config);
      ASSERT_TRUE(cache);
      const Status fits = FillFromPrefix(cache->get(), kSlots, prefix, 0, row->tokens[0]);
      EXPECT_TRUE(fits.ok()) << fits.message();
      EXPECT_EQ(FillFromPrefix(cache->get(), kSlots, prefix, row->tokens[0], row->tokens[0] * 106 / 100 + 512).code(),
                StatusCode::kOutOfBudget);
    }
  }
  EXPECT_GE(tokens[1], tokens[0] + 700) << "three of four starts are shared";
  EXPECT_GE(tokens[2], tokens[0] * 3 / 2) << "one of two layers keeps its window only";
  EXPECT_GT(tokens[3], tokens[2]);
}

TEST(Plan, NothingFits) {
  CacheConfig config;
  config.spec = *ParseSpec("k4v4");
  config.layers = {{4, 2, 64, 64}};
  const Result<PlanRow> row = PlanPacked(config, {1000, {1, 4096}, {1, 1 << 20}});
  ASSERT_TRUE(row) << row.error().message();
  EXPECT_EQ(row->tokens, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(row->slots.back(), 0);
}

}  // namespace
}  // namespace tersekv::cli
