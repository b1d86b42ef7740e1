// SPDX-License-Identifier: Apache-2.0
// Equal pages of several sequences, held once: bytes fall, and everything else is as without sharing.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "src/cache/page_index.h"
#include "src/cache/page_pool.h"
#include "tersekv/session.h"
#include "tests/cache/specs.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::StepResult;
using reference::Token;
using reference::TokenRun;

constexpr int kCommon = 700, kTokens = 900, kSequences = 3;

Model SharingModel(const std::string& spec, bool share) {
  Model model = reference::MakeModel(spec, kTwoLayers);
  model.config.share_pages = share;
  return model;
}

// A start that all sequences have, then tokens of their own.
std::vector<Token> Prompt(int32_t seq) {
  std::vector<Token> tokens = TokenRun(seq, 0, kCommon);
  for (const Token& t : TokenRun(seq, kCommon, kTokens - kCommon, static_cast<uint64_t>(seq) + 1)) tokens.push_back(t);
  return tokens;
}

// Each with its own cut into steps: bytes do not depend on it.
std::vector<StepResult> FillAll(KvCache* cache, const Model& model) {
  std::vector<StepResult> results;
  for (int32_t seq = 0; seq < kSequences; ++seq) {
    results.push_back(reference::RunInSteps(cache, model, Prompt(seq), {static_cast<size_t>(97 + 50 * seq), 64}));
  }
  return results;
}

std::string BytesOf(const KvCache& cache, int32_t seq) {
  const std::vector<int32_t> tokens(static_cast<size_t>(cache.Length(seq)), 1);
  const Result<std::string> bytes = SerializeSession(cache, seq, tokens, {"m", "f", {}});
  return bytes ? *bytes : bytes.error().message();
}

class Share : public ::testing::TestWithParam<const char*> {};

TEST_P(Share, CommonStartsAreHeldOnce) {
  const Model with = SharingModel(GetParam(), true), without = SharingModel(GetParam(), false);
  auto shared = reference::MakeCache(with), own = reference::MakeCache(without);
  const CacheUsage empty = shared->Usage();
  ASSERT_EQ(FillAll(shared.get(), with), FillAll(own.get(), without));
  const CacheUsage a = shared->Usage(), b = own->Usage();
  EXPECT_EQ(b.saved, 0u);
  EXPECT_EQ(a.pages + a.saved, b.pages);
  // Whole pages of the common start; page means see nothing of what comes behind them.
  const KvSpec& spec = with.config.spec;
  const int64_t common = (kCommon - spec.sink) / spec.page, pages = b.pages / kSequences;
  const auto whole = static_cast<int64_t>((kTokens - spec.sink - spec.win + spec.page - 1) / spec.page);
  EXPECT_GE(static_cast<int64_t>(a.saved), (kSequences - 1) * common * (pages / (whole + 1)));
  for (int32_t seq = 0; seq < kSequences; ++seq) EXPECT_EQ(BytesOf(*shared, seq), BytesOf(*own, seq));

  // What is written later, here behind a truncation into the common pages, is the writer's alone.
  for (KvCache* cache : {shared.get(), own.get()}) ASSERT_TRUE(cache->Truncate(1, kCommon - 300).ok());
  const std::vector<Token> more = TokenRun(1, kCommon - 300, 250, 77);
  ASSERT_EQ(reference::RunInSteps(shared.get(), with, more, {33}),
            reference::RunInSteps(own.get(), without, more, {33}));
  for (int32_t seq = 0; seq < kSequences; ++seq) EXPECT_EQ(BytesOf(*shared, seq), BytesOf(*own, seq));

  for (int32_t seq = 0; seq < kSequences; ++seq) shared->Remove(seq);
  EXPECT_EQ(shared->Usage().bytes_used, empty.bytes_used) << "leaked";
}

INSTANTIATE_TEST_SUITE_P(Specs, Share,
                         ::testing::Values("k4v4", "f16", "f32", "q8_0", "k8v3+mean=off+scale=off+sink=0+win=0",
                                           "kivi-k4v2-g32", "k3tv3t", "k4v4+mean=page", "k4v4+page=128"));

// Two caches of one budget: what sharing saves is there for others.
TEST(ShareBudget, TakesWhatItSaves) {
  Model model = SharingModel("k4v4", true);
  auto alone = reference::MakeCache(model);
  (void)FillAll(alone.get(), model);
  const size_t needed = alone->Usage().bytes_used;
  model.config.byte_budget = needed + needed / 4;
  auto cache = reference::MakeCache(model);
  (void)FillAll(cache.get(), model);
  EXPECT_LE(cache->Usage().bytes_reserved, model.config.byte_budget);
  // A fourth one comes back from a file without its common pages being there twice.
  const std::vector<int32_t> tokens(kTokens, 1);
  const Result<std::string> saved = SerializeSession(*cache, 2, tokens, {"m", "f", {}});
  ASSERT_TRUE(saved);
  const Result<SavedSession> session = ParseSession(*saved, "it");
  ASSERT_TRUE(session);
  const CacheUsage before = cache->Usage();
  ASSERT_TRUE(RestoreSession(*session, {"m", "f", {}}, cache.get(), 9).ok());
  EXPECT_LT(cache->Usage().pages - before.pages, 3 * before.pages / 100) << "only its open pages are new";
  EXPECT_EQ(BytesOf(*cache, 9), BytesOf(*cache, 2));

  model.config.share_pages = false;
  auto plain = reference::MakeCache(model);
  const std::vector<Token> third = Prompt(2);
  (void)reference::RunInSteps(plain.get(), model, Prompt(0), {64});
  (void)reference::RunInSteps(plain.get(), model, Prompt(1), {64});
  EXPECT_LT(plain->TokensThatFit(2), kTokens) << "the budget would do without sharing: this shows nothing";
}

// The shared page is open on one side: writing into it takes a copy in every layer.
TEST(ShareBudget, CountsTheCopiesOfEachLayer) {
  Model model = SharingModel("f16", true);
  model.config.byte_budget = 1 << 20;
  auto cache = reference::MakeCache(model);
  (void)reference::RunInSteps(cache.get(), model, TokenRun(0, 0, 128), {64});
  (void)reference::RunInSteps(cache.get(), model, TokenRun(1, 0, 128), {64});
  ASSERT_TRUE(cache->Truncate(0, 100).ok());
  const int64_t fits = cache->TokensThatFit(0);
  (void)reference::RunInSteps(cache.get(), model, TokenRun(0, 100, 28, 5), {28});
  EXPECT_EQ(cache->TokensThatFit(0), fits - 28) << "the copies were foreseen";
  ASSERT_TRUE(cache->Truncate(0, 100).ok());
  (void)reference::RunInSteps(cache.get(), model, TokenRun(0, 100, 28), {28});
  EXPECT_EQ(BytesOf(*cache, 0), BytesOf(*cache, 1));
  EXPECT_EQ(cache->Usage().saved, cache->Usage().pages);
}

TEST(PageIndex, ComparesBytesWhateverTheHash) {
  PagePool pool(0);
  const int size_class = pool.SizeClass(72);
  std::vector<Page*> pages;
  PageIndex index;
  for (uint8_t i = 0; i < 20; ++i) {
    Page* page = pages.emplace_back(pool.Take(size_class));
    page->data[71] = i;
    index.Add(page, i % 3);  // many with one hash
  }
  for (uint8_t i = 0; i < 20; ++i) EXPECT_EQ(index.Find({pages[i]->data, 72}, i % 3), pages[i]);
  EXPECT_EQ(index.Find({pages[1]->data, 72}, 0), nullptr);
  EXPECT_EQ(index.Find({pages[1]->data, 71}, 1), nullptr);
  for (uint8_t i = 0; i < 20; i += 2) index.Remove(pages[i]);
  EXPECT_EQ(index.Find({pages[2]->data, 72}, 2), nullptr);
  EXPECT_EQ(index.Find({pages[5]->data, 72}, 2), pages[5]);
  for (uint8_t i = 1; i < 20; i += 2) index.Remove(pages[i]);
  EXPECT_TRUE(index.empty());
  // Random hashes in and out, against a plain list.
  reference::Random random(3);
  std::set<size_t> in;
  std::vector<uint64_t> hash(pages.size());
  for (int turn = 0; turn < 4000; ++turn) {
    const size_t i = random.Below(pages.size());
    if (in.erase(i) > 0) {
      index.Remove(pages[i]);
    } else {
      hash[i] = random.Below(9);
      index.Add(pages[i], hash[i]);
      in.insert(i);
    }
    for (size_t p = 0; p < pages.size(); ++p) {
      ASSERT_EQ(index.Find({pages[p]->data, 72}, hash[p]), in.contains(p) ? pages[p] : nullptr);
    }
  }
  for (const size_t i : in) index.Remove(pages[i]);
  for (Page* page : pages) pool.Release(page);
  std::set<uint64_t> hashes;
  std::vector<uint8_t> bytes(77);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = 1;
    hashes.insert(HashBytes(bytes));
    hashes.insert(HashBytes({bytes.data(), i}));
    bytes[i] = 0;
  }
  EXPECT_EQ(hashes.size(), 2 * bytes.size());
}

}  // namespace
}  // namespace tersekv
