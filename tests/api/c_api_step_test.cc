// SPDX-License-Identifier: Apache-2.0
// Steps through the C ABI: wrong arguments and statuses that only a step gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "src/api/c_status.h"
#include "tersekv/c_api.h"
#include "tersekv/cuda_api.h"

namespace tersekv {
namespace {

using ::testing::HasSubstr;

// What callers from before `rollback` were compiled with.
struct FirstCacheConfig {
  uint32_t struct_size;
  const char* spec;
  const tersekv_layer_shape* layers;
  int32_t n_layers;
  int32_t max_workers;
  uint64_t byte_budget;
  int32_t arithmetic;
};
static_assert(sizeof(FirstCacheConfig) == 48, "44 bytes of fields and 4 of padding");
static_assert(sizeof(tersekv_cache_config) == 56);

// A field that is added to a struct without padding at its end changes its size.
#define TERSEKV_ENDS_WITH(type, field) \
  static_assert(offsetof(type, field) + sizeof(type{}.field) == sizeof(type), #type " ends in padding")
TERSEKV_ENDS_WITH(tersekv_cache_config, windows);
TERSEKV_ENDS_WITH(tersekv_attention, lse);
TERSEKV_ENDS_WITH(tersekv_usage, bits_effective);
TERSEKV_ENDS_WITH(tersekv_cuda_format, seed);
TERSEKV_ENDS_WITH(tersekv_cuda_pool, v_inv_scale);
TERSEKV_ENDS_WITH(tersekv_cuda_raw, begin);
TERSEKV_ENDS_WITH(tersekv_cuda_tokens, not_finite);
TERSEKV_ENDS_WITH(tersekv_cuda_attention, raw);
static_assert(sizeof(tersekv_attention) == 88 && sizeof(tersekv_usage) == 64 && sizeof(tersekv_cuda_format) == 40 &&
                  sizeof(tersekv_cuda_pool) == 80 && sizeof(tersekv_cuda_tokens) == 120 &&
                  sizeof(tersekv_cuda_attention) == 200 && sizeof(tersekv_cuda_raw) == 48,
              "a struct that grows needs its old size in the library, and a test as FirstCacheConfig's");

class CApiStep : public ::testing::Test {
 protected:
  CApiStep() {
    config_.struct_size = sizeof config_;
    config_.spec = "k4v4";
    config_.layers = &kShape;
    config_.n_layers = 1;
    config_.max_workers = 2;
    config_.byte_budget = 200000;
    EXPECT_EQ(tersekv_cache_create(&config_, &cache_), TERSEKV_OK);
    attention_.struct_size = sizeof attention_;
    attention_.scale = 1;
    attention_.heads = 4;
    attention_.q = rows_.data();
    attention_.q_head_stride = 32 * 4;
    attention_.out = out_.data();
    attention_.out_head_stride = 64 * 4;
  }
  ~CApiStep() override { tersekv_cache_destroy(cache_); }

  tersekv_status Begin(int32_t pos) {
    const tersekv_step_token token = {0, pos};
    return tersekv_step_begin(cache_, &token, 1);
  }
  tersekv_status Write(tersekv_side side, int32_t layer = 0, int32_t worker = 0, int32_t workers = 1) {
    return tersekv_step_write_rows(cache_, layer, side, rows_.data(), 512, worker, workers);
  }
  tersekv_status Attend(int32_t layer = 0, int32_t worker = 0, int32_t workers = 1) {
    return tersekv_step_attend(cache_, layer, &attention_, worker, workers);
  }

  static constexpr tersekv_layer_shape kShape = {4, 2, 32, 64};
  std::vector<float> rows_ = std::vector<float>(128, 1.0f), out_ = std::vector<float>(256);
  tersekv_cache_config config_ = {};
  tersekv_attention attention_ = {};
  tersekv_cache* cache_ = nullptr;
};

TEST_F(CApiStep, NullsAreNamed) {
  const tersekv_step_token token = {0, 0};
  EXPECT_EQ(tersekv_step_begin(nullptr, &token, 1), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("NULL"));
  EXPECT_EQ(tersekv_step_begin(cache_, nullptr, 1), TERSEKV_INVALID_ARGUMENT);
  ASSERT_EQ(Begin(0), TERSEKV_OK);
  EXPECT_EQ(tersekv_step_write_rows(nullptr, 0, TERSEKV_K, rows_.data(), 0, 0, 1), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_step_write_rows(cache_, 0, TERSEKV_K, nullptr, 0, 0, 1), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_step_attend(nullptr, 0, &attention_, 0, 1), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_step_attend(cache_, 0, nullptr, 0, 1), TERSEKV_INVALID_ARGUMENT);
  attention_.q = nullptr;
  EXPECT_EQ(Attend(), TERSEKV_INVALID_ARGUMENT);
  attention_.q = rows_.data();
  attention_.out = nullptr;
  EXPECT_EQ(Attend(), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_step_end(nullptr), TERSEKV_INVALID_ARGUMENT);
  tersekv_step_abort(nullptr);
  EXPECT_EQ(tersekv_sequence_length(nullptr, 0), 0);
  EXPECT_EQ(tersekv_sequence_truncate(nullptr, 0, 0), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_sequence_fork(nullptr, 0, 1), TERSEKV_INVALID_ARGUMENT);
  tersekv_sequence_remove(nullptr, 0);
  tersekv_usage usage = {};
  usage.struct_size = sizeof usage;
  EXPECT_EQ(tersekv_cache_usage(nullptr, &usage), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_cache_usage(cache_, nullptr), TERSEKV_INVALID_ARGUMENT);
}

TEST_F(CApiStep, StructSizesMustMatch) {
  ASSERT_EQ(Begin(0), TERSEKV_OK);
  attention_.struct_size -= 4;
  EXPECT_EQ(Attend(), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("tersekv_attention.struct_size"));
  tersekv_usage usage = {};
  EXPECT_EQ(tersekv_cache_usage(cache_, &usage), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("tersekv_usage.struct_size is 0"));
}

TEST_F(CApiStep, LayersWorkersAndHeadsAreChecked) {
  ASSERT_EQ(Begin(0), TERSEKV_OK);
  for (const int32_t layer : {-1, 1}) {
    EXPECT_EQ(Write(TERSEKV_K, layer), TERSEKV_INVALID_ARGUMENT);
    EXPECT_EQ(Attend(layer), TERSEKV_INVALID_ARGUMENT);
  }
  const int32_t wrong[][2] = {{0, 0}, {0, 3}, {2, 2}, {-1, 2}};  // worker of workers, at most 2
  for (const auto& [worker, workers] : wrong) {
    EXPECT_EQ(Write(TERSEKV_V, 0, worker, workers), TERSEKV_INVALID_ARGUMENT) << worker << " of " << workers;
    EXPECT_EQ(Attend(0, worker, workers), TERSEKV_INVALID_ARGUMENT) << worker << " of " << workers;
  }
  attention_.heads = 8;
  EXPECT_EQ(Attend(), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("heads is 8"));
}

TEST_F(CApiStep, StatusesOfSteps) {
  EXPECT_EQ(tersekv_step_end(cache_), TERSEKV_INTERNAL);
  EXPECT_EQ(Begin(-1), TERSEKV_INVALID_ARGUMENT);
  EXPECT_EQ(tersekv_step_begin(cache_, reinterpret_cast<const tersekv_step_token*>(rows_.data()), 0),
            TERSEKV_INVALID_ARGUMENT);
  ASSERT_EQ(Begin(0), TERSEKV_OK);
  EXPECT_EQ(Begin(1), TERSEKV_INTERNAL);
  ASSERT_EQ(Write(TERSEKV_K), TERSEKV_OK);
  EXPECT_EQ(tersekv_step_end(cache_), TERSEKV_INTERNAL) << "V was not written";
  rows_[40] = 1e9f;
  ASSERT_EQ(Begin(0), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_K), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_V), TERSEKV_OK);
  EXPECT_EQ(tersekv_step_end(cache_), TERSEKV_DATA_LOSS);
  EXPECT_EQ(tersekv_sequence_length(cache_, 0), 0);
  std::vector<tersekv_step_token> many;
  for (int32_t i = 0; i < 20000; ++i) many.push_back({0, i});
  EXPECT_EQ(tersekv_step_begin(cache_, many.data(), many.size()), TERSEKV_OUT_OF_BUDGET);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("200000"));
  rows_[40] = 1;
  ASSERT_EQ(Begin(5), TERSEKV_OK);
  tersekv_step_abort(cache_);
  ASSERT_EQ(Begin(4), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_K), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_V), TERSEKV_OK);
  ASSERT_EQ(Attend(), TERSEKV_OK);
  EXPECT_EQ(tersekv_step_end(cache_), TERSEKV_OK);
  EXPECT_EQ(out_, std::vector<float>(256, 1.0f));
}

// Ranges: removed, copied, shifted, kept; rollback and windows.
TEST_F(CApiStep, Ranges) {
  for (int32_t pos = 0; pos < 40; ++pos) {
    ASSERT_EQ(Begin(pos), TERSEKV_OK);
    ASSERT_EQ(Write(TERSEKV_K), TERSEKV_OK);
    ASSERT_EQ(Write(TERSEKV_V), TERSEKV_OK);
    ASSERT_EQ(tersekv_step_end(cache_), TERSEKV_OK);
  }
  EXPECT_EQ(tersekv_sequence_remove_range(cache_, 0, 10, 20), TERSEKV_OK);
  EXPECT_EQ(tersekv_sequence_length(cache_, 0), 30);
  EXPECT_EQ(tersekv_sequence_copy(cache_, 0, 2, 5, 30), TERSEKV_OK);
  EXPECT_EQ(tersekv_sequence_length(cache_, 2), 15);
  EXPECT_EQ(tersekv_sequence_first_position(cache_, 2), 5);
  EXPECT_EQ(tersekv_sequence_last_position(cache_, 2), 29);
  EXPECT_EQ(tersekv_sequence_copy(cache_, 0, 2, 0, -1), TERSEKV_INVALID_ARGUMENT);
  const double frequency[] = {1, 0.5};
  tersekv_key_rotation rotation = {frequency, 2, 1, 0};
  EXPECT_EQ(tersekv_sequence_shift(cache_, 0, 20, -1, -10, &rotation, 1), TERSEKV_OK);
  EXPECT_EQ(tersekv_sequence_last_position(cache_, 0), 29);
  EXPECT_EQ(tersekv_sequence_shift(cache_, 0, 20, -1, -1, nullptr, 0), TERSEKV_INVALID_ARGUMENT);
  rotation.pairs = 17;
  rotation.frequency = nullptr;
  EXPECT_EQ(tersekv_sequence_shift(cache_, 0, 20, -1, 5, &rotation, 1), TERSEKV_INVALID_ARGUMENT);
  tersekv_sequence_keep(cache_, 2);
  EXPECT_EQ(tersekv_sequence_first_position(cache_, 0), -1);
  EXPECT_EQ(tersekv_sequence_remove_range(nullptr, 0, 0, 1), TERSEKV_INVALID_ARGUMENT);

  tersekv_cache* other = nullptr;
  config_.rollback = -7;
  EXPECT_EQ(tersekv_cache_create(&config_, &other), TERSEKV_INVALID_ARGUMENT);
  const int32_t window = 9;
  config_.rollback = 0;
  config_.windows = &window;
  ASSERT_EQ(tersekv_cache_create(&config_, &other), TERSEKV_OK);
  std::swap(other, cache_);
  ASSERT_EQ(Begin(0), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_K), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_V), TERSEKV_OK);
  EXPECT_EQ(Attend(), TERSEKV_INVALID_ARGUMENT);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("windows of up to 9"));
  attention_.window = 9;
  EXPECT_EQ(Attend(), TERSEKV_OK);
  tersekv_step_abort(cache_);
  tersekv_cache_destroy(other);
}

// The first struct, with bytes 44 to 47 as an uninitialised one may have them.
TEST(CApi, CallersFromBeforeRollback) {
  const tersekv_layer_shape shape = {4, 2, 32, 64};
  for (const int fill : {0x00, 0x7f, 0xf9}) {
    tersekv_cache_config memory;
    std::memset(&memory, fill, sizeof memory);
    FirstCacheConfig old = {sizeof(FirstCacheConfig), "k4v4", &shape, 1, 1, 200000, TERSEKV_EXACT};
    std::memcpy(static_cast<void*>(&memory), &old, offsetof(FirstCacheConfig, arithmetic) + sizeof old.arithmetic);
    tersekv_cache* cache = nullptr;
    ASSERT_EQ(tersekv_cache_create(&memory, &cache), TERSEKV_OK) << tersekv_last_error();
    tersekv_cache_destroy(cache);
    cache = nullptr;
    for (const uint32_t size : {44u, 52u, 60u}) {
      memory.struct_size = size;
      EXPECT_EQ(tersekv_cache_create(&memory, &cache), TERSEKV_INVALID_ARGUMENT);
      EXPECT_EQ(cache, nullptr);
    }
  }
}

TEST_F(CApiStep, NothingIsThrownIntoC) {
  const tersekv_step_token token = {0, 0};
  const tersekv_key_rotation rotation = {};
  constexpr size_t kAbsurd = SIZE_MAX / 2;  // more than any vector takes
  EXPECT_EQ(tersekv_step_begin(cache_, &token, kAbsurd), TERSEKV_INTERNAL);
  EXPECT_STRNE(tersekv_last_error(), "");
  EXPECT_EQ(tersekv_sequence_shift(cache_, 0, 0, 1, 1, &rotation, kAbsurd), TERSEKV_INTERNAL);
  tersekv_codec* codec = nullptr;
  const float mean = 0;  // one value: it must not be read
  EXPECT_EQ(tersekv_codec_create("k4v4", TERSEKV_K, INT32_MAX, 0, 0, &mean, &mean, &codec), TERSEKV_INVALID_ARGUMENT);
  ASSERT_EQ(Begin(0), TERSEKV_OK) << "the cache is as before";
  ASSERT_EQ(Write(TERSEKV_K), TERSEKV_OK);
  ASSERT_EQ(Write(TERSEKV_V), TERSEKV_OK);
  EXPECT_EQ(tersekv_step_end(cache_), TERSEKV_OK);

  EXPECT_EQ(c::Guard([]() -> tersekv_status { throw std::bad_alloc(); }), TERSEKV_INTERNAL);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("out of memory"));
  EXPECT_EQ(c::Guard([]() -> tersekv_status { throw std::runtime_error("why"); }), TERSEKV_INTERNAL);
  EXPECT_STREQ(tersekv_last_error(), "why");
  EXPECT_EQ(c::Guard([]() -> int64_t { throw 7; }, int64_t{-3}), -3);
  EXPECT_THAT(tersekv_last_error(), HasSubstr("unknown"));
}

}  // namespace
}  // namespace tersekv
