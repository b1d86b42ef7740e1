// SPDX-License-Identifier: Apache-2.0
// Saved states of the preload object without an engine: what a context cannot hold is refused before anything changes.
#include "hosts/llama/preload/state_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace tersekv::llama::preload {
namespace {

using ::testing::HasSubstr;

// A context of `sequences` of at most `ctx_seq` tokens.
struct Made {
  Made(int sequences, uint32_t ctx_seq) : history(MakeCache()), codec(&history, {"m", "f", {}}, sizes) {
    sizes.sequences = sequences;
    sizes.ctx_seq = ctx_seq;
  }
  static std::unique_ptr<KvCache> MakeCache() {
    CacheConfig config;
    config.spec = ParseSpec("k4v4+win=3").value();
    config.layers = {{1, 1, 32, 32}};
    return KvCache::Create(config).value();
  }
  void Append(int32_t seq, int n) {
    const std::vector<float> row(32, 1.0f);
    KvCache* cache = history.cache();
    for (int i = 0; i < n; ++i) {
      const StepToken token = {seq, cache->LastPosition(seq) + 1};
      ASSERT_TRUE(cache->BeginStep({&token, 1}).ok());
      cache->WriteRows(0, Kv::kK, row.data(), 0, 0, 1);
      cache->WriteRows(0, Kv::kV, row.data(), 0, 0, 1);
      ASSERT_TRUE(cache->EndStep().ok());
    }
    history.Changed();
  }

  Sizes sizes;
  History history;
  StateCodec codec;
};

TEST(StateCodec, StatesAreHeldToTheContext) {
  Made from(4, 200);
  from.Append(0, 150);
  from.Append(3, 10);
  const std::string all(from.codec.Save(StateCodec::kAll, false).value());
  const std::string one(from.codec.Save(0, false).value());

  const auto refused = [](Made* to, const std::string& bytes, int32_t seq, const char* words) {
    to->Append(1, 5);
    const Result<size_t> read = to->codec.Load(bytes, seq);
    ASSERT_FALSE(read) << words;
    EXPECT_THAT(read.error().message(), HasSubstr(words));
    EXPECT_EQ(to->history.cache()->Length(1), 5) << "nothing has changed";
  };
  Made few(3, 200), small(4, 149);
  refused(&few, all, StateCodec::kAll, "sequence 3: the context has 3 (n_seq_max)");
  Made again(3, 200);
  refused(&again, one, 3, "sequence 3: the context has 3 (n_seq_max)");
  refused(&small, one, 2, "150 tokens: a sequence of this context takes 149 (n_ctx)");
  Made same(4, 200);
  std::string twice = all;
  const int32_t zero = 0;
  std::memcpy(twice.data() + 16 + 16 + one.size() - 32, &zero, sizeof zero);  // the id of the second sequence
  refused(&same, twice, StateCodec::kAll, "twice");

  Made enough(4, 150);
  ASSERT_TRUE(enough.codec.Load(all, StateCodec::kAll));
  EXPECT_EQ(enough.history.cache()->Length(0), 150);
  EXPECT_EQ(enough.history.cache()->Length(3), 10);
  ASSERT_TRUE(enough.codec.Load(one, 2));
  EXPECT_EQ(enough.history.cache()->Length(2), 150);
}

}  // namespace
}  // namespace tersekv::llama::preload
