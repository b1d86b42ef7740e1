// SPDX-License-Identifier: Apache-2.0
// The CUDA part of the C ABI where there is no GPU: formats, sizes, and what is refused. tests/cuda/gpu/abi_check.cc
// launches through it.
#include "tersekv/cuda_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

extern "C" int tersekv_c11_cuda(void);

namespace {

using ::testing::HasSubstr;

TEST(CudaApi, CallsFromC11) { EXPECT_EQ(tersekv_c11_cuda(), 0) << "line of cuda_api_c11.c: " << tersekv_last_error(); }

std::string Refusal(const char* spec, int head_dim) {
  tersekv_cuda_format format = {};
  EXPECT_NE(tersekv_cuda_format_of(spec, head_dim, &format), TERSEKV_OK) << spec;
  EXPECT_EQ(format.struct_size, 0u) << "a refusal writes nothing";
  return tersekv_last_error();
}

TEST(CudaApi, FormatsComeFromSpecs) {
  tersekv_cuda_format format = {};
  ASSERT_EQ(tersekv_cuda_format_of("k8v2+sink=0+win=0+page=128+seed=7+norm=match", 64, &format), TERSEKV_OK)
      << tersekv_last_error();
  EXPECT_EQ(format.struct_size, sizeof format);
  EXPECT_EQ(format.k_bits, 8);
  EXPECT_EQ(format.v_bits, 2);
  EXPECT_EQ(format.page_tokens, 128);
  EXPECT_EQ(format.seed, 7u);
  EXPECT_EQ(format.k_norm, TERSEKV_NORM_MATCH);
  EXPECT_EQ(tersekv_cuda_page_bytes(&format, 1), 128u * (64 + 16 + 4));
  ASSERT_EQ(tersekv_cuda_format_of("f16", 256, &format), TERSEKV_OK);
  EXPECT_EQ(format.k_bits, 16);
  EXPECT_EQ(format.raw_dtype, TERSEKV_F16);
  EXPECT_EQ(tersekv_cuda_page_bytes(&format, 2), 64u * 2 * 256 * 4);
}

TEST(CudaApi, RefusesByName) {
  EXPECT_THAT(Refusal("k4v4", 128), HasSubstr("k4v4+sink=0+win=0"));  // the remedy
  EXPECT_THAT(Refusal("k4v4+sink=0+win=0", 80), HasSubstr("head_dim 80"));
  EXPECT_THAT(Refusal("k7v4+sink=0+win=0", 128), HasSubstr("7 and 4 bits"));
  EXPECT_THAT(Refusal("kivi-k4v4", 128), HasSubstr("Lloyd-Max"));
  EXPECT_THAT(Refusal("fp8", 128), HasSubstr("Lloyd-Max"));
  EXPECT_THAT(Refusal("k4v4+rot=haar+sink=0+win=0", 128), HasSubstr("rot="));
  EXPECT_THAT(Refusal("k4v4+mean=page+sink=0+win=0", 128), HasSubstr("mean"));
  EXPECT_THAT(Refusal("nonsense", 128), HasSubstr("nonsense"));
  EXPECT_EQ(tersekv_cuda_format_of(nullptr, 128, nullptr), TERSEKV_INVALID_ARGUMENT);
}

TEST(CudaApi, SaysWhereAPageKeepsWhat) {
  for (const char* spec : {"k2v3+sink=0+win=0", "k4v5+sink=0+win=0", "k6v8+sink=0+win=0", "bf16"}) {
    for (const int d : {64, 128, 192, 256}) {
      tersekv_cuda_format format;
      ASSERT_EQ(tersekv_cuda_format_of(spec, d, &format), TERSEKV_OK);
      tersekv_cuda_block block = {};
      EXPECT_EQ(tersekv_cuda_block_of(&format, &block), TERSEKV_INVALID_ARGUMENT) << "no size";
      block.struct_size = sizeof block;
      ASSERT_EQ(tersekv_cuda_block_of(&format, &block), TERSEKV_OK);
      EXPECT_EQ(static_cast<size_t>(block.block_bytes) * 4, tersekv_cuda_page_bytes(&format, 1)) << spec;
      EXPECT_EQ(block.k_codes, 0);
      EXPECT_EQ(block.v_codes, 2 * d * format.k_bits);
      EXPECT_EQ(block.k_scales, block.v_codes + 2 * d * format.v_bits);
      for (const int side : {0, 1}) {
        const size_t count = static_cast<size_t>(16 * d * (side == 0 ? format.k_bits : format.v_bits));
        std::vector<int32_t> places(count);
        ASSERT_EQ(tersekv_cuda_bit_places(&format, side, places.data(), count), TERSEKV_OK);
        std::sort(places.begin(), places.end());
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(places[i], static_cast<int32_t>(i)) << spec << ' ' << d;
        EXPECT_EQ(tersekv_cuda_bit_places(&format, side, places.data(), count - 1), TERSEKV_INVALID_ARGUMENT);
      }
      int32_t place = 0;
      EXPECT_EQ(tersekv_cuda_bit_places(&format, 2, &place, 1), TERSEKV_INVALID_ARGUMENT);
    }
  }
  EXPECT_EQ(tersekv_cuda_stored_code(4, 8), 0);  // the smallest positive level
  EXPECT_EQ(tersekv_cuda_stored_code(4, 7), 8);  // the smallest negative one
  EXPECT_EQ(tersekv_cuda_stored_code(8, 0), 1);
  EXPECT_EQ(tersekv_cuda_stored_code(4, 16), -1);
  EXPECT_EQ(tersekv_cuda_stored_code(7, 0), -1);
}

TEST(CudaApi, ChecksWhatItIsGiven) {
  tersekv_cuda_format format = {};
  EXPECT_EQ(tersekv_cuda_page_bytes(&format, 8), 0u) << "no size";
  EXPECT_EQ(tersekv_cuda_page_bytes(nullptr, 8), 0u);
  ASSERT_EQ(tersekv_cuda_format_of("k4v4+sink=0+win=0", 128, &format), TERSEKV_OK);
  EXPECT_EQ(tersekv_cuda_page_bytes(&format, 0), 0u);
  const auto refused = [&](auto change, const char* text) {
    tersekv_cuda_format own = format;
    tersekv_cuda_pool pool = {};
    pool.struct_size = sizeof pool;
    pool.format = &own;
    pool.kv_heads = 8;
    tersekv_cuda_attention attention = {};
    attention.struct_size = sizeof attention;
    attention.pool = &pool;
    change(&attention, &pool, &own);
    size_t bytes = 0;
    EXPECT_EQ(tersekv_cuda_workspace_bytes(&attention, &bytes), TERSEKV_INVALID_ARGUMENT) << text;
    EXPECT_THAT(tersekv_last_error(), HasSubstr(text));
  };
  refused([](auto* a, auto*, auto*) { a->struct_size = 8; }, "tersekv_cuda_attention.struct_size is 8");
  refused([](auto*, auto* p, auto*) { p->struct_size = 1; }, "tersekv_cuda_pool.struct_size is 1");
  refused([](auto*, auto*, auto* f) { f->struct_size = 2; }, "tersekv_cuda_format.struct_size is 2");
  refused([](auto* a, auto*, auto*) { a->pool = nullptr; }, "pool is NULL");
  refused([](auto*, auto* p, auto*) { p->format = nullptr; }, "format is NULL");
  refused([](auto*, auto*, auto* f) { f->k_norm = 4; }, "norm 4");
  refused([](auto*, auto*, auto* f) { f->raw_dtype = 0; }, "raw_dtype 0");
  refused([](auto* a, auto*, auto*) { a->q.dtype = 3; }, "q.dtype is 3");
  refused([](auto* a, auto*, auto*) { a->out.head_stride = 24; }, "24 bytes");
  tersekv_cuda_format raw_format = {}, narrow = {};
  ASSERT_EQ(tersekv_cuda_format_of("bf16", 128, &raw_format), TERSEKV_OK);
  ASSERT_EQ(tersekv_cuda_format_of("bf16", 64, &narrow), TERSEKV_OK);
  const auto raw_refused = [&](auto change, const char* text) {
    tersekv_cuda_pool pool = {};
    pool.struct_size = sizeof pool;
    pool.format = &raw_format;
    pool.kv_heads = 8;
    tersekv_cuda_raw raw = {};
    raw.struct_size = sizeof raw;
    raw.pool = &pool;
    change(&raw, &pool);
    refused([&](auto* a, auto*, auto*) { a->raw = &raw; }, text);
  };
  raw_refused([](auto* r, auto*) { r->struct_size = 7; }, "tersekv_cuda_raw.struct_size is 7");
  raw_refused([](auto* r, auto*) { r->pool = nullptr; }, "pool is NULL");
  raw_refused([&](auto*, auto* p) { p->format = &format; }, "raw.pool holds 4 and 4 bits");
  raw_refused([&](auto*, auto* p) { p->format = &narrow; }, "head_dim 64 and 8 KV heads beside 128 and 8");
  raw_refused([](auto*, auto* p) { p->kv_heads = 4; }, "head_dim 128 and 4 KV heads beside 128 and 8");
  raw_refused([](auto*, auto*) {}, "raw.pool.pages is NULL");
  EXPECT_EQ(tersekv_cuda_workspace_bytes(nullptr, nullptr), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cuda_append(nullptr, 0), TERSEKV_INVALID_ARGUMENT);
}

TEST(CudaApi, PrefillAndLatentsAreRefusedByName) {
  EXPECT_EQ(tersekv_cuda_decompress_range(nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cuda_transform_queries(nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cuda_merge(nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cuda_latent_append(nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cuda_latent_attend(nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cuda_latent_page_bytes(nullptr), 0u);
  tersekv_cuda_range range = {};
  EXPECT_EQ(tersekv_cuda_decompress_range(&range, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("tersekv_cuda_range.struct_size is 0"));
  tersekv_cuda_format format = {};
  ASSERT_EQ(tersekv_cuda_format_of("k4v4+sink=0+win=0", 128, &format), TERSEKV_OK);
  tersekv_cuda_pool pool = {};
  pool.struct_size = sizeof pool;
  pool.format = &format;
  pool.kv_heads = 8;
  tersekv_cuda_parts parts = {};
  parts.struct_size = sizeof parts;
  parts.pool = &pool;
  parts.count = 1;
  EXPECT_EQ(tersekv_cuda_merge(&parts, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("rows or rows_lse is NULL"));
  tersekv_cuda_latents latents = {};
  latents.struct_size = sizeof latents;
  latents.bits = 4;
  latents.page_tokens = 64;
  EXPECT_EQ(tersekv_cuda_latent_page_bytes(&latents), 64u * (256 + 2 + 128)) << "docs/decisions/0010-latents.md";
  latents.bits = 7;
  EXPECT_EQ(tersekv_cuda_latent_page_bytes(&latents), 0u);
  latents.bits = 4;
  latents.norm = 9;
  EXPECT_EQ(tersekv_cuda_latent_page_bytes(&latents), 0u);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("norm 9"));
}

// A program that was built before attention had l_packed and raw: what lies behind its struct is not looked at.
TEST(CudaApi, TakesTheFirstAttentionStruct) {
  tersekv_cuda_format format = {};
  ASSERT_EQ(tersekv_cuda_format_of("k4v4+sink=0+win=0", 128, &format), TERSEKV_OK);
  tersekv_cuda_pool pool = {};
  pool.struct_size = sizeof pool;
  pool.format = &format;
  pool.kv_heads = 8;
  tersekv_cuda_attention attention = {};
  attention.struct_size = 184;
  attention.pool = &pool;
  attention.batch = 1, attention.heads = 32, attention.q_len = 1;
  const tersekv_cuda_raw nonsense = {};
  attention.raw = &nonsense;
  size_t bytes = 0;
  EXPECT_NE(tersekv_cuda_workspace_bytes(&attention, &bytes), TERSEKV_INVALID_ARGUMENT) << tersekv_last_error();
  attention.struct_size = sizeof attention;
  EXPECT_EQ(tersekv_cuda_workspace_bytes(&attention, &bytes), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("tersekv_cuda_raw.struct_size is 0"));
}

TEST(CudaApi, DescribesOrSaysWhyNot) {
  tersekv_cuda_format format = {};
  ASSERT_EQ(tersekv_cuda_format_of("k4v4+sink=0+win=0", 128, &format), TERSEKV_OK);
  char text[16];
  const tersekv_status status = tersekv_cuda_describe(&format, 32, 8, 1, text, sizeof text);
  if (*tersekv_cuda_kernels() == '\0') {
    EXPECT_EQ(status, TERSEKV_UNSUPPORTED);
    EXPECT_THAT(tersekv_last_error(), HasSubstr("TERSEKV_CUDA"));
  }
  EXPECT_EQ(tersekv_cuda_describe(&format, 32, 8, 1, nullptr, 0), TERSEKV_INVALID_ARGUMENT);
}

}  // namespace
