// SPDX-License-Identifier: Apache-2.0
// Made-up histories: as long as asked for, on our caches and on llama.cpp's own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hosts/llama/stock_history.h"
#include "tersekv/llama.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

template <class T>
void Append(std::vector<uint8_t>* out, T value) {
  out->resize(out->size() + sizeof(T));
  std::memcpy(out->data() + out->size() - sizeof(T), &value, sizeof(T));
}

// Two tokens, one layer; rows of 3 and 2 bytes.
std::vector<uint8_t> State(uint32_t transposed = 0) {
  std::vector<uint8_t> state;
  Append<uint32_t>(&state, 0xabcdef);
  Append<int32_t>(&state, 7);
  Append<uint32_t>(&state, 1);
  Append<uint32_t>(&state, 2);
  for (const int position : {0, 1}) {
    Append<int32_t>(&state, position);
    Append<uint32_t>(&state, 1);
    Append<int32_t>(&state, 7);
  }
  Append<uint32_t>(&state, transposed);
  Append<uint32_t>(&state, 1);
  for (const uint64_t row : {uint64_t{3}, uint64_t{2}}) {
    Append<int32_t>(&state, 1);
    Append<uint64_t>(&state, row);
    for (uint64_t i = 0; i < 2 * row; ++i) Append<uint8_t>(&state, static_cast<uint8_t>(10 * row + i));
  }
  return state;
}

TEST(RepeatState, RowsComeOverAndOver) {
  const auto repeated = RepeatState(State(), 4, 5);
  ASSERT_TRUE(repeated);
  std::vector<uint8_t> expected;
  Append<uint32_t>(&expected, 0xabcdef);
  Append<int32_t>(&expected, 4);
  Append<uint32_t>(&expected, 1);
  Append<uint32_t>(&expected, 5);
  for (int32_t t = 0; t < 5; ++t) {
    Append<int32_t>(&expected, t);
    Append<uint32_t>(&expected, 1);
    Append<int32_t>(&expected, 4);
  }
  Append<uint32_t>(&expected, 0);
  Append<uint32_t>(&expected, 1);
  Append<int32_t>(&expected, 1);
  Append<uint64_t>(&expected, 3);
  for (const int b : {30, 31, 32, 33, 34, 35, 30, 31, 32, 33, 34, 35, 30, 31, 32}) {
    Append<uint8_t>(&expected, static_cast<uint8_t>(b));
  }
  Append<int32_t>(&expected, 1);
  Append<uint64_t>(&expected, 2);
  for (const int b : {20, 21, 22, 23, 20, 21, 22, 23, 20, 21}) Append<uint8_t>(&expected, static_cast<uint8_t>(b));
  EXPECT_EQ(*repeated, expected);
}

TEST(RepeatState, RefusesWhatItDoesNotKnow) {
  const std::vector<uint8_t> state = State();
  for (size_t n = 0; n < state.size(); ++n) {
    EXPECT_FALSE(RepeatState(std::span(state).first(n), 0, 5)) << n << " bytes";
  }
  EXPECT_FALSE(RepeatState(State(1), 0, 5)) << "V is transposed";
  std::vector<uint8_t> longer = state;
  longer.push_back(0);
  EXPECT_FALSE(RepeatState(longer, 0, 5));
}

class FillWithNoise : public MadeModelTest {};

TEST_F(FillWithNoise, HistoriesGrowAndDecodingGoesOn) {
  const std::string path = SmallLlama();
  for (const char* kv : {"k4v4", "f16", "stock-f16", "stock-q8_0"}) {
    SessionOptions options;
    options.model_path = path;
    options.kv = kv;
    options.ctx = 1000;
    options.max_sequences = 2;
    options.threads = 1;
    auto session = Session::Open(options);
    ASSERT_TRUE(session) << session.error().message();
    ASSERT_TRUE((*session)->FillWithNoise(1, 900).ok()) << kv;
    EXPECT_EQ((*session)->Length(1), 900);
    EXPECT_EQ((*session)->Length(0), 0);
    EXPECT_EQ((*session)->Usage().tokens, 900);
    EXPECT_FALSE((*session)->FillWithNoise(1, 10).ok()) << "not empty";
    const BatchToken token = {5, 900, 1, true};
    ASSERT_TRUE((*session)->Decode(std::span(&token, 1)).ok()) << kv;
    for (const float logit : (*session)->Logits(0)) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_EQ((*session)->Length(1), 901);
  }
}

// A hybrid's recurrent layers have a state of the last token, which stays as a few real tokens have made it.
TEST_F(FillWithNoise, HybridsGoOnToo) {
  for (const auto& [arch, more] : {std::pair("lfm2", ""), std::pair("qwen3next", "--embd 128")}) {
    const std::string path = RandomModel(arch, 4, 2, 64, more);
    for (const char* kv : {"k4v4", "stock-f16"}) {
      SCOPED_TRACE(std::string(arch) + " " + kv);
      SessionOptions options;
      options.model_path = path;
      options.kv = kv;
      options.ctx = 1200;
      options.threads = 1;
      const auto session = Session::Open(options);
      ASSERT_TRUE(session) << session.error().message();
      for (const int depth : {100, 1000, 1}) {
        const Status filled = (*session)->FillWithNoise(0, depth);
        ASSERT_TRUE(filled.ok()) << depth << ": " << filled.message();
        EXPECT_EQ((*session)->Length(0), depth);
        for (int t = 0; t < 3; ++t) {
          const BatchToken token{5 + t, depth + t, 0, true};
          const Status decoded = (*session)->Decode({&token, 1});
          ASSERT_TRUE(decoded.ok()) << depth << ": " << decoded.message();
          for (const float logit : (*session)->Logits(0)) ASSERT_TRUE(std::isfinite(logit));
        }
        (*session)->Clear(0);
      }
    }
  }
}

}  // namespace
}  // namespace tersekv::llama
