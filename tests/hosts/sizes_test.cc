// SPDX-License-Identifier: Apache-2.0
// Contexts at the edge of what TERSEKV_KV_BYTES holds.
#include "hosts/llama/preload/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tersekv/capacity.h"

namespace tersekv::llama::preload {
namespace {

using ::testing::HasSubstr;

// What the refusal says is held, is held: 123,904 tokens were refused with "that holds 123968 tokens".
TEST(Sizes, WhatTheBytesHoldIsNotRefused) {
  CacheConfig config;
  config.spec = ParseSpec("k4v4").value();
  config.layers.assign(6, {9, 3, 64, 64});
  llama_context_params params = {};
  params.n_seq_max = 16;
  params.n_batch = params.n_ubatch = 512;
  params.kv_unified = true;
  for (const size_t bytes : {40u << 20, 100u << 20, 160432128u}) {
    Settings settings;
    settings.kv = "k4v4";
    settings.kv_bytes = bytes;
    const int64_t tokens = CapacityTokens(config, bytes, 16).value() * 16;
    params.n_ctx = static_cast<uint32_t>(tokens / 256 * 256);
    const Result<Sizes> sizes = PlanSizes(params, 8192, config, settings);
    ASSERT_TRUE(sizes) << sizes.status().ToString();
    EXPECT_EQ(sizes->ctx, params.n_ctx);
    EXPECT_LE(sizes->needed, bytes);
    params.n_ctx += 256;
    const Result<Sizes> more = PlanSizes(params, 8192, config, settings);
    ASSERT_EQ(more.status().code(), StatusCode::kOutOfBudget) << bytes;
    EXPECT_THAT(more.status().message(), HasSubstr(std::to_string(tokens)));
  }
}

}  // namespace
}  // namespace tersekv::llama::preload
