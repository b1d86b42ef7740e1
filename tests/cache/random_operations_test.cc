// SPDX-License-Identifier: Apache-2.0
// Random sequences of operations against plain lists of tokens: what is there, what attention says, which bytes are
// held. TERSEKV_RANDOM_RUNS sets how many (10000 is the whole), TERSEKV_RANDOM_FIRST where to begin.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tersekv/session.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"
#include "tests/reference/token_list.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::Random;
using reference::Token;
using reference::TokenLists;

constexpr double kTolerance = 2e-5;  // of fp32 attention
constexpr int kSequences = 4, kOperations = 18;
const char* const kSpecs[] = {"f32",
                              "k4v4+mean=off+scale=off+sink=2+win=9",
                              "f16",
                              "k8v3+mean=off+scale=off+sink=0+win=0",
                              "k3v5+sink=4+win=20",
                              "q8_0+win=5",
                              "bf16",
                              "k2.5qv3t+sink=1+win=30",
                              "k6v4+mean=off+scale=off+rot=none+sink=70+win=3+page=128"};

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

bool Shares(int run) { return run / 2 % 2 == 1; }

Model MakeModel(int run) {
  const std::string spec = kSpecs[static_cast<size_t>(run) % std::size(kSpecs)];
  Model model = reference::MakeModel(spec, {{2, 1, 32, 32}, {2, 2, 32, 32}}, 2);
  model.seed = static_cast<uint64_t>(run);
  if (run % 5 == 2) model.params.max_alibi_bias = 8;
  if (run % 3 == 0) model.config.windows = {1 + run % 90, 0};
  if (run % 6 == 3) model.config.keep_back = run % 40;
  model.config.share_pages = Shares(run);
  if (run % 2 == 1) model.config.byte_budget = run % 4 == 1 ? 400u << 10 : 64u << 20;
  const KvSpec& parsed = model.config.spec;
  if (!parsed.raw() && parsed.mean == MeanMode::kStats) {  // a profile's: lists measure nothing
    Random random(static_cast<uint64_t>(run));
    for (const LayerShape& shape : model.config.layers) {
      LayerStats& stats = model.config.statistics.emplace_back();
      for (auto* side : {&stats.k_mean, &stats.v_mean, &stats.k_scale, &stats.v_scale}) {
        const bool scale = side == &stats.k_scale || side == &stats.v_scale;
        for (int i = 0; i < shape.kv_heads * 32; ++i) {
          side->push_back(static_cast<float>(scale ? std::exp2(random.Uniform() - 0.5) : random.Gaussian()));
        }
      }
    }
  }
  return model;
}

class RandomRun {
 public:
  explicit RandomRun(int run) : random_(static_cast<uint64_t>(run) * 77 + 1), model_(MakeModel(run)), lists_(model_) {
    cache_ = reference::MakeCache(model_);
    empty_ = cache_->Usage();
    fits_ = cache_->TokensThatFit(0);
  }

  void All() {
    for (int i = 0; i < kOperations && !testing::Test::HasFatalFailure(); ++i) {
      One();
      if (!testing::Test::HasFatalFailure()) Check();
    }
    for (const int32_t seq : cache_->Sequences()) cache_->Remove(seq);
    EXPECT_EQ(cache_->Usage().bytes_used, empty_.bytes_used) << "leaked";
    EXPECT_EQ(cache_->TokensThatFit(0), fits_) << "leaked";
  }
  int64_t refused() const { return refused_; }
  size_t saved() const { return saved_; }

 private:
  int32_t Sequence() { return static_cast<int32_t>(random_.Below(kSequences)); }
  int32_t Last(int32_t seq) const { return cache_->LastPosition(seq); }
  int64_t Position(int32_t seq) { return static_cast<int64_t>(random_.Below(static_cast<size_t>(Last(seq) + 2))); }

  void One() {
    const int32_t seq = Sequence();
    switch (random_.Below(12)) {
      case 0:
        return Truncate(seq);
      case 1:
      case 2:
        return RemoveRange(seq);
      case 3:
        return Copy(seq);
      case 4:
        return Shift(seq);
      case 5:
        return SaveAndRestore(seq);
      case 6:
        if (random_.Below(3) == 0) return Evict(seq);
        [[fallthrough]];
      case 7:
        return Abort(seq);
      default:
        return Append();
    }
  }

  std::vector<Token> NewTokens(int32_t seq) {
    std::vector<Token> tokens;
    int32_t position = Last(seq);
    for (size_t n = 1 + random_.Below(random_.Below(2) == 0 ? 4 : 120); n > 0; --n) {
      position += 1 + static_cast<int32_t>(random_.Below(16) == 0 ? random_.Below(9) : 0);
      // Where pages are shared, most tokens of a position are the same in all sequences.
      const bool same = model_.config.share_pages && random_.Below(200) > 0;
      tokens.push_back({seq, position, same ? static_cast<uint64_t>(position) + (1u << 20) : ++content_});
    }
    return tokens;
  }

  void Append() {
    std::vector<Token> step = NewTokens(Sequence());
    if (random_.Below(3) == 0) {
      const std::vector<Token> more = NewTokens((step[0].seq + 1) % kSequences);
      step.insert(step.begin() + static_cast<ptrdiff_t>(random_.Below(step.size())), more.begin(), more.end());
    }
    const Status begun = cache_->BeginStep(reference::StepTokens(step));
    if (!begun.ok()) {
      ASSERT_EQ(begun.code(), StatusCode::kOutOfBudget) << begun.ToString();
      ++refused_;
      return Evict(cache_->Sequences().empty() ? 0 : cache_->Sequences()[0]);
    }
    cache_->AbortStep();
    const reference::Errors errors = lists_.AppendAndCompare(
        step, reference::RunStep(cache_.get(), model_, step, 1 + static_cast<int>(random_.Below(2))), 61);
    ASSERT_LE(errors.out, kTolerance);
    ASSERT_LE(errors.lse, kTolerance);
  }

  void Abort(int32_t seq) {
    const std::vector<Token> step = NewTokens(seq);
    if (!cache_->BeginStep(reference::StepTokens(step)).ok()) return;
    if (random_.Below(2) == 0) reference::WriteAll(cache_.get(), model_, step);
    cache_->AbortStep();
  }

  // A windowed layer may lack what an operation would bring back into sight: then nothing has changed.
  bool Refused(const Status& status) {
    if (status.ok()) return false;
    EXPECT_TRUE(status.code() == StatusCode::kOutOfBudget ||
                (status.code() == StatusCode::kUnsupported && !model_.config.windows.empty()))
        << status.ToString();
    ++refused_;
    return true;
  }

  void Truncate(int32_t seq) {
    const int64_t tokens = static_cast<int64_t>(random_.Below(static_cast<size_t>(cache_->Length(seq)) + 1));
    if (!Refused(cache_->Truncate(seq, tokens))) lists_.Truncate(seq, tokens);
  }
  void RemoveRange(int32_t seq) {
    int64_t begin = Position(seq), end = Position(seq);
    if (begin > end) std::swap(begin, end);
    if (random_.Below(8) == 0) end = -1;
    if (!Refused(cache_->RemoveRange(seq, begin, end))) lists_.RemoveRange(seq, begin, end);
  }
  void Copy(int32_t from) {
    const int32_t to = (from + 1) % kSequences;
    int64_t begin = 0, end = -1;
    if (random_.Below(2) == 0) begin = Position(from), end = Position(from) + 20;
    cache_->Remove(to);
    lists_.Remove(to);
    if (!Refused(cache_->Copy(from, to, begin, end))) lists_.Copy(from, to, begin, end);
  }
  void Shift(int32_t seq) {
    KeyRotation rotation;
    rotation.frequency = RopeFrequencies({.channels = 16, .base = 100});
    rotation.interleaved = random_.Below(2) == 0;
    rotation.first_channel = static_cast<int>(random_.Below(17));
    const int64_t begin = Position(seq), delta = static_cast<int64_t>(random_.Below(60)) - 30;
    const Status status = cache_->Shift(seq, begin, -1, delta, {&rotation, 1});
    if (status.code() == StatusCode::kInvalidArgument) return;  // positions would not ascend
    if (!Refused(status)) lists_.Shift(seq, begin, -1, delta, rotation);
  }
  void SaveAndRestore(int32_t seq) {
    if (cache_->Length(seq) == 0) return;
    const std::vector<int32_t> tokens(static_cast<size_t>(cache_->Length(seq)), 5);
    const ModelIdentity identity = {"m", "f", {}};
    const Result<std::string> bytes = SerializeSession(*cache_, seq, tokens, identity);
    ASSERT_TRUE(bytes) << bytes.status().ToString();
    const Result<SavedSession> saved = ParseSession(*bytes, "it");
    ASSERT_TRUE(saved) << saved.status().ToString();
    cache_->Remove(seq);
    if (Refused(RestoreSession(*saved, identity, cache_.get(), seq))) lists_.Remove(seq);
  }
  void Evict(int32_t seq) {
    cache_->Remove(seq);
    lists_.Remove(seq);
  }

  void Check() {
    const std::vector<int32_t> sequences = cache_->Sequences();
    ASSERT_EQ(sequences, lists_.Sequences());
    const CacheUsage usage = cache_->Usage();
    int64_t tokens = 0, packed = 0;
    size_t raw = 0;
    std::map<const uint8_t*, size_t> pages;
    for (const int32_t seq : sequences) {
      const std::span<const int32_t> positions = cache_->Positions(seq);
      ASSERT_EQ(std::vector<int32_t>(positions.begin(), positions.end()), lists_.Positions(seq));
      tokens += cache_->Length(seq);
      packed += lists_.Packed(seq);
      const Result<SequenceState> state = cache_->State(seq);
      ASSERT_TRUE(state);
      const int64_t places = std::max<int64_t>(state->packed_end - model_.config.spec.sink, 0);
      const int64_t page = model_.config.spec.page;
      for (size_t l = 0; l < state->layers.size(); ++l) {
        for (const auto& rows : state->layers[l].sinks) raw += rows.size();
        for (const auto& rows : state->layers[l].ring) raw += rows.size();
        ASSERT_EQ(static_cast<int64_t>(state->layers[l].pages.size()), (places + page - 1) / page);
        for (const auto& bytes : state->layers[l].pages) {
          if (!bytes.empty()) pages[bytes.data()] = bytes.size();
        }
      }
      if (places == lists_.Packed(seq)) continue;
      // Places without a token: never a whole page of them.
      for (int64_t p = 0; (p + 1) * page <= places; ++p) {
        const auto first = state->positions.begin() + model_.config.spec.sink + p * page;
        ASSERT_TRUE(std::any_of(first, first + page, [](int32_t stored) { return stored >= 0; })) << "page " << p;
      }
    }
    size_t held = 0;
    for (const auto& [data, bytes] : pages) held += bytes;
    ASSERT_EQ(usage.pages, held) << "leaked or counted twice";
    saved_ += usage.saved;
    ASSERT_EQ(usage.raw_rows, raw);
    ASSERT_EQ(usage.tokens, tokens);
    ASSERT_EQ(usage.tokens_packed, packed);
    ASSERT_EQ(usage.pages + usage.raw_rows + usage.stats + usage.tables, usage.bytes_used);
    ASSERT_TRUE(model_.config.byte_budget == 0 || usage.bytes_reserved <= model_.config.byte_budget);
  }

  Random random_;
  Model model_;
  TokenLists lists_;
  std::unique_ptr<KvCache> cache_;
  CacheUsage empty_;
  int64_t fits_ = 0;
  uint64_t content_ = 0;
  int64_t refused_ = 0;
  size_t saved_ = 0;
};

TEST(RandomOperations, EqualPlainLists) {
  constexpr int kRuns = 180;
  const int first = FromEnvironment("TERSEKV_RANDOM_FIRST", 0), runs = FromEnvironment("TERSEKV_RANDOM_RUNS", kRuns);
  int64_t refused = 0;
  size_t saved = 0, saved_by_copies = 0;
  for (int i = first; i < first + runs; ++i) {
    SCOPED_TRACE(testing::Message() << "run " << i << ", " << kSpecs[static_cast<size_t>(i) % std::size(kSpecs)]);
    RandomRun run(i);
    run.All();
    if (testing::Test::HasFailure()) return;
    refused += run.refused();
    (Shares(i) ? saved : saved_by_copies) += run.saved();
  }
  if (first == 0 && runs == kRuns) {  // of these runs, not of any: some copy whole sequences
    EXPECT_GT(saved, 2 * saved_by_copies);
  }
  RecordProperty("runs", runs);
  RecordProperty("refused", static_cast<int>(refused));
}

}  // namespace
}  // namespace tersekv
