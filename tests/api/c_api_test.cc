// SPDX-License-Identifier: Apache-2.0
// The C ABI: usable from C, same results as C++, every wrong argument is a status with a message.
#include "tersekv/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/codec.h"
#include "tersekv/version.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

extern "C" int tersekv_c11_codec(void);
extern "C" int tersekv_c11_cache(float* out);

namespace tersekv {
namespace {

using reference::Model;
using reference::TokenRun;
using ::testing::HasSubstr;

static_assert(TERSEKV_OUT_OF_BUDGET == static_cast<int>(StatusCode::kOutOfBudget));
static_assert(TERSEKV_INTERNAL == static_cast<int>(StatusCode::kInternal));

TEST(CApi, FromC11) {
  EXPECT_EQ(tersekv_c11_codec(), 0) << "the line of c_api_c11.c; " << tersekv_last_error();
  float out[32] = {};
  ASSERT_EQ(tersekv_c11_cache(out), 0) << "the line of c_api_c11.c; " << tersekv_last_error();
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], static_cast<float>(i));
}

TEST(CApi, VersionAndSpecs) {
  EXPECT_STREQ(tersekv_version(), Version());
  EXPECT_EQ(tersekv_abi_version(), TERSEKV_ABI_VERSION);
  char text[32];
  ASSERT_EQ(tersekv_spec_canonical("k4v4+page=64+seed=3", text, sizeof text), TERSEKV_OK);
  EXPECT_STREQ(text, "k4v4+seed=3");
  ASSERT_EQ(tersekv_spec_canonical("k4v4", text, 5), TERSEKV_OK) << "with its NUL";
  EXPECT_EQ(tersekv_spec_canonical("k4v4", text, 4), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("5"));
  EXPECT_EQ(tersekv_spec_canonical("k9v4", text, sizeof text), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("k9v4"));
  EXPECT_EQ(tersekv_spec_canonical(nullptr, text, sizeof text), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_spec_canonical("k4v4", nullptr, 9), TERSEKV_INVALID_ARGUMENT);
}

TEST(CApi, LastErrorBelongsToTheThread) {
  ASSERT_EQ(tersekv_spec_canonical(nullptr, nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  const std::string mine = tersekv_last_error();
  EXPECT_NE(mine, "");
  std::thread([] {
    EXPECT_STREQ(tersekv_last_error(), "");
    char text[8];
    EXPECT_EQ(tersekv_spec_canonical("nonsense", text, sizeof text), TERSEKV_INVALID_ARGUMENT);
    EXPECT_THAT(tersekv_last_error(), HasSubstr("nonsense"));
  }).join();
  EXPECT_EQ(tersekv_last_error(), mine);
}

TEST(CApi, CodecEqualsTheOneOfCpp) {
  const std::vector<float> rows = reference::GaussianRows(1, 5, 64);
  std::vector<float> mean(64, 0.5f), scale(64, 2.0f);
  tersekv_codec* codec = nullptr;
  ASSERT_EQ(tersekv_codec_create("k3v4", TERSEKV_K, 64, 2, 1, mean.data(), scale.data(), &codec), TERSEKV_OK);
  const auto cpp = VectorCodec::Create(ParseSpec("k3v4").value(), Kv::kK, 64, 2, 1, {mean, scale});
  const size_t bytes = tersekv_codec_record_bytes(codec);
  ASSERT_EQ(bytes, (*cpp)->record_bytes());
  std::vector<uint8_t> a(5 * bytes), b(5 * bytes);
  ASSERT_EQ(tersekv_codec_encode(codec, rows.data(), 5, a.data()), TERSEKV_OK);
  ASSERT_TRUE((*cpp)->Encode(rows.data(), 5, b.data()).ok());
  EXPECT_EQ(a, b);
  std::vector<float> c(5 * 64), d(5 * 64);
  ASSERT_EQ(tersekv_codec_decode(codec, a.data(), 5, c.data()), TERSEKV_OK);
  (*cpp)->Decode(b.data(), 5, d.data());
  EXPECT_EQ(c, d);
  std::vector<float> bad = rows;
  bad[64] = NAN;
  EXPECT_EQ(tersekv_codec_encode(codec, bad.data(), 5, a.data()), TERSEKV_DATA_LOSS);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("row 1, channel 0"));
  EXPECT_EQ(tersekv_codec_encode(nullptr, rows.data(), 5, a.data()), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_codec_encode(codec, nullptr, 5, a.data()), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_codec_encode(codec, rows.data(), 5, nullptr), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_codec_decode(codec, nullptr, 5, c.data()), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_codec_record_bytes(nullptr), 0u);
  tersekv_codec_destroy(codec);
  tersekv_codec_destroy(nullptr);
  codec = nullptr;
  EXPECT_EQ(tersekv_codec_create("k4v4", TERSEKV_K, 72, 0, 0, nullptr, nullptr, &codec), TERSEKV_UNSUPPORTED);
  EXPECT_EQ(tersekv_codec_create("k4v4", TERSEKV_K, 0, 0, 0, nullptr, nullptr, &codec), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_codec_create("k4v4", TERSEKV_K, 64, 0, 0, nullptr, nullptr, nullptr), TERSEKV_INVALID_ARGUMENT);
  scale[9] = 0;
  EXPECT_EQ(tersekv_codec_create("k4v4", TERSEKV_K, 64, 0, 0, nullptr, scale.data(), &codec), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(codec, nullptr);
}

constexpr tersekv_layer_shape kShape = {4, 2, 32, 64};

tersekv_cache_config Config(const char* spec) {
  tersekv_cache_config config = {};
  config.struct_size = sizeof config;
  config.spec = spec;
  config.layers = &kShape;
  config.n_layers = 1;
  config.max_workers = 2;
  return config;
}

TEST(CApi, CreateRefusesWhatIsWrong) {
  tersekv_cache* cache = nullptr;
  const auto code = [&](auto change) {
    tersekv_cache_config config = Config("k4v4");
    change(&config);
    const tersekv_status status = tersekv_cache_create(&config, &cache);
    EXPECT_EQ(cache, nullptr);
    return status;
  };
  EXPECT_EQ(code([](auto* c) { c->struct_size = 8; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("tersekv_cache_config.struct_size is 8"));
  EXPECT_EQ(code([](auto* c) { c->struct_size += 8; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->spec = nullptr; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->spec = "k4"; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->spec = "auto"; }), TERSEKV_UNSUPPORTED);
  EXPECT_EQ(code([](auto* c) { c->layers = nullptr; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->n_layers = 0; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->n_layers = -1; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->max_workers = 0; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->arithmetic = 3; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](auto* c) { c->arithmetic = -1; }), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cache_create(nullptr, &cache), TERSEKV_INVALID_ARGUMENT);
  const tersekv_cache_config good = Config("k4v4");
  EXPECT_EQ(tersekv_cache_create(&good, nullptr), TERSEKV_INVALID_ARGUMENT);
  tersekv_cache_destroy(nullptr);
}

// A step through C of a model whose rows the C++ side also sees.
struct CStep {
  explicit CStep(const Model& model, int n) : out(static_cast<size_t>(n) * 4 * 64), lse(static_cast<size_t>(n) * 4) {
    for (const reference::Token& token : TokenRun(1, 0, n)) {
      tokens.push_back({token.seq, token.pos});
      for (const auto& [to, row] : {std::pair{&k, model.K(0, token.content)}, std::pair{&v, model.V(0, token.content)},
                                    std::pair{&q, model.Q(0, token.content)}}) {
        to->insert(to->end(), row.begin(), row.end());
      }
    }
    attention.struct_size = sizeof attention;
    attention.scale = model.params.scale;
    attention.heads = 4;
    attention.q = q.data();
    attention.q_token_stride = 4 * 32 * 4;
    attention.q_head_stride = 32 * 4;
    attention.out = out.data();
    attention.out_token_stride = 4 * 64 * 4;
    attention.out_head_stride = 64 * 4;
    attention.lse = lse.data();
  }
  std::vector<tersekv_step_token> tokens;
  std::vector<float> k, v, q, out, lse;
  tersekv_attention attention = {};
};

class CApiCache : public ::testing::TestWithParam<Arithmetic> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, CApiCache,
                         ::testing::Values(Arithmetic::kInt16, Arithmetic::kExact, Arithmetic::kFast));

TEST_P(CApiCache, EqualsTheOneOfCpp) {
  Model model = reference::MakeModel("k4v4", {{4, 2, 32, 64}}, 2);
  model.config.arithmetic = GetParam();
  CStep step(model, 200);
  tersekv_cache_config config = Config("k4v4");
  config.arithmetic = static_cast<int32_t>(GetParam());
  tersekv_cache* cache = nullptr;
  ASSERT_EQ(tersekv_cache_create(&config, &cache), TERSEKV_OK);
  ASSERT_EQ(tersekv_step_begin(cache, step.tokens.data(), 200), TERSEKV_OK);
  for (int w = 0; w < 2; ++w) {
    ASSERT_EQ(tersekv_step_write_rows(cache, 0, TERSEKV_K, step.k.data(), 2 * 32 * 4, w, 2), TERSEKV_OK);
    ASSERT_EQ(tersekv_step_write_rows(cache, 0, TERSEKV_V, step.v.data(), 2 * 64 * 4, w, 2), TERSEKV_OK);
  }
  for (int w = 0; w < 2; ++w) ASSERT_EQ(tersekv_step_attend(cache, 0, &step.attention, w, 2), TERSEKV_OK);
  ASSERT_EQ(tersekv_step_end(cache), TERSEKV_OK);
  auto cpp = reference::MakeCache(model);
  const reference::StepResult expected = reference::RunStep(cpp.get(), model, TokenRun(1, 0, 200));
  EXPECT_EQ(step.out, expected[0].out);
  EXPECT_EQ(step.lse, expected[0].lse);
  tersekv_usage usage = {};
  usage.struct_size = sizeof usage;
  ASSERT_EQ(tersekv_cache_usage(cache, &usage), TERSEKV_OK);
  const CacheUsage u = cpp->Usage();
  EXPECT_EQ(usage.bytes_used, u.bytes_used);
  EXPECT_EQ(usage.bytes_reserved, u.bytes_reserved);
  EXPECT_EQ(usage.bytes_f16, u.bytes_f16);
  EXPECT_EQ(usage.scratch, u.scratch);
  EXPECT_EQ(usage.tokens, 200);
  EXPECT_EQ(usage.tokens_packed, 200 - 132);
  EXPECT_EQ(usage.bits_effective, u.bits_effective);
  EXPECT_EQ(usage.struct_size, sizeof usage);
  EXPECT_EQ(tersekv_sequence_fork(cache, 1, 2), TERSEKV_OK);
  EXPECT_EQ(tersekv_sequence_fork(cache, 1, 2), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_sequence_truncate(cache, 2, 5), TERSEKV_OK);
  EXPECT_EQ(tersekv_sequence_truncate(cache, 2, -5), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_sequence_length(cache, 2), 5);
  tersekv_sequence_remove(cache, 2);
  EXPECT_EQ(tersekv_sequence_length(cache, 2), 0);
  EXPECT_EQ(tersekv_sequence_length(cache, 1), 200);
  tersekv_cache_destroy(cache);
}

}  // namespace
}  // namespace tersekv
