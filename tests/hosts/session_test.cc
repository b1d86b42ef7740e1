// SPDX-License-Identifier: Apache-2.0
// What a Session promises beside right logits: histories, batches, sharing, text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using SessionOnMade = MadeModelTest;
using SessionOnDemo = DemoModelTest;

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> AtUbatch(SessionOptions options, int ubatch, const Schedule& schedule) {
  options.ubatch = ubatch;
  return RunSchedule(options, schedule);
}

// What the engine's own products give differently for one row and for many is all that may differ. A code that sits
// on the edge of two may fall to either side, hence the second part of the limit.
void CheckUbatch(const std::string& path, int length) {
  const int vocab = OpenOrFail(Options(path, "stock-f16"))->model().vocab;
  const Schedule schedule = OneSequence(vocab, length, 64, 0);
  SessionOptions options = Options(path, "stock-f16");
  options.flash_attention = true;
  const Difference stock =
      Compare("stock-f16, ubatch 1 against 64", AtUbatch(options, 64, schedule), AtUbatch(options, 1, schedule), vocab);
  options.kv = "k4v4";
  const Difference ours =
      Compare("k4v4, ubatch 1 against 64", AtUbatch(options, 64, schedule), AtUbatch(options, 1, schedule), vocab);
  EXPECT_LE(ours.relative_rms, 2 * stock.relative_rms + 1e-3);
}

TEST_F(SessionOnMade, UbatchOneEqualsUbatch64) { CheckUbatch(SmallLlama(), 384); }
TEST_F(SessionOnDemo, UbatchOneEqualsUbatch64) { CheckUbatch(DemoModel(), 256); }

// The engine wants room for one output of every sequence.
TEST_F(SessionOnMade, MoreSequencesThanUbatch) {
  for (const char* kv : {"k4v4", "stock-f16"}) {
    SessionOptions options = Options(SmallLlama(), kv);
    options.max_sequences = 8;
    options.ubatch = 2;
    options.ctx = 64;
    const std::unique_ptr<Session> session = OpenOrFail(options);
    ASSERT_NE(session, nullptr);
    std::vector<BatchToken> batch;
    for (int32_t seq = 0; seq < 8; ++seq) batch.push_back({5 + seq, 0, seq, true});
    EXPECT_EQ(RunSchedule(session.get(), {batch}).size(), 8u * 320u);
    for (int32_t seq = 0; seq < 8; ++seq) EXPECT_EQ(session->Length(seq), 1);
  }
}

Schedule Tail(const Schedule& schedule, int32_t from) {
  Schedule tail;
  for (const std::vector<BatchToken>& batch : schedule) {
    for (const BatchToken& t : batch) {
      if (t.pos >= from) tail.push_back({t});
    }
  }
  return tail;
}

TEST_F(SessionOnMade, TruncateAndDecodeAgain) {
  for (const char* kv : {"f32", "f16", "k4v4", "stock-f32"}) {
    const std::unique_ptr<Session> session = OpenOrFail(Options(SmallLlama(), kv));
    ASSERT_NE(session, nullptr);
    const int vocab = session->model().vocab;
    const Schedule schedule = OneSequence(vocab, 300, 100, 20);
    const std::vector<float> first = RunSchedule(session.get(), schedule);
    ASSERT_TRUE(session->Truncate(0, 300).ok());
    EXPECT_EQ(session->Length(0), 300);
    const std::vector<float> once = RunSchedule(session.get(), Tail(schedule, 300));
    EXPECT_EQ(session->Length(0), 320);
    ASSERT_TRUE(session->Truncate(0, 300).ok());
    const std::vector<float> twice = RunSchedule(session.get(), Tail(schedule, 300));
    EXPECT_EQ(once, twice) << kv;
    const std::vector<float> tail(first.end() - static_cast<ptrdiff_t>(twice.size()), first.end());
    const Difference d = Compare(fmt::format("{}, decoded again", kv), tail, twice, vocab);
    // What was packed stays packed: tokens that were raw for the first pass are not for the second.
    EXPECT_LE(d.relative_rms, std::string(kv) == "k4v4" ? 0.1 : 0.0) << kv;
    session->Clear(0);
    EXPECT_EQ(session->Length(0), 0);
    EXPECT_EQ(RunSchedule(session.get(), schedule), first) << kv << " after Clear";
  }
}

TEST_F(SessionOnMade, PrefillReportsProgressAndEqualsDecode) {
  SessionOptions options = Options(SmallLlama(), "k4v4");
  options.ubatch = 64;
  const std::unique_ptr<Session> a = OpenOrFail(options), b = OpenOrFail(options);
  ASSERT_TRUE(a && b);
  Schedule schedule = OneSequence(a->model().vocab, 150, 150, 0);
  std::vector<int32_t> tokens;
  for (BatchToken& t : schedule[0]) {
    tokens.push_back(t.token);
    t.logits = t.pos == 149;
  }
  std::vector<std::pair<size_t, size_t>> seen;
  ASSERT_TRUE(a->Prefill(tokens, 1, [&](size_t done, size_t total) { seen.emplace_back(done, total); }).ok());
  EXPECT_THAT(seen, ElementsAre(Pair(64, 150), Pair(128, 150), Pair(150, 150)));
  EXPECT_EQ(a->Length(1), 150);
  EXPECT_EQ(a->Length(0), 0);
  const std::span<const float> last = a->Logits(0);
  EXPECT_EQ(RunSchedule(b.get(), schedule), std::vector<float>(last.begin(), last.end()));
  EXPECT_TRUE(a->Prefill(tokens, 1, nullptr).ok());
  EXPECT_EQ(a->Length(1), 300);
}

TEST_F(SessionOnMade, UsageIsTheFormula) {
  for (const char* kv : {"f32", "f16", "k8v8", "k4v4", "k2v2"}) {
    SessionOptions options = Options(SmallLlama(), kv);
    options.ctx = 2048;
    const std::unique_ptr<Session> session = OpenOrFail(options);
    ASSERT_NE(session, nullptr);
    std::vector<int32_t> tokens(1500, 300);
    ASSERT_TRUE(session->Prefill(tokens, 0, nullptr).ok());
    CacheConfig config;
    config.spec = *ParseSpec(kv);
    config.layers = session->model().layers;
    const double formula = static_cast<double>(FormulaBytes(config, 1500));
    const CacheUsage usage = session->Usage();
    EXPECT_EQ(usage.tokens, 1500);
    EXPECT_NEAR(static_cast<double>(usage.bytes_used), formula, 0.01 * formula) << kv;
    fmt::print("[ measured ] {}: {} bytes used, {:+.3f}% of the formula\n", kv, usage.bytes_used,
               (static_cast<double>(usage.bytes_used) / formula - 1) * 100);
    session->Clear(0);
    EXPECT_EQ(session->Usage().tokens, 0);
    EXPECT_EQ(session->Usage().bytes_used, 0u) << kv;
  }
}

TEST_F(SessionOnMade, SessionsAlternateUndisturbed) {
  const std::vector<const char*> specs = {"f32", "k4v4", "k8v3", "stock-f16"};
  const std::string path = SmallLlama();
  std::vector<std::unique_ptr<Session>> sessions;
  for (const char* kv : specs) sessions.push_back(OpenOrFail(Options(path, kv)));
  ASSERT_NE(sessions.back(), nullptr);
  const Schedule schedule = OneSequence(sessions[0]->model().vocab, 250, 50, 10);
  std::vector<std::vector<float>> together(specs.size());
  for (const std::vector<BatchToken>& batch : schedule) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::vector<float> rows = RunSchedule(sessions[i].get(), {batch});
      together[i].insert(together[i].end(), rows.begin(), rows.end());
    }
  }
  sessions.clear();
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i], RunSchedule(Options(path, specs[i]), schedule)) << specs[i];
  }
}

TEST_F(SessionOnDemo, SessionsOnOneFileShareTheModel) {
  std::unique_ptr<Session> first, second;
  SessionOptions options = Options(DemoModel(), "k4v4");
  options.self_test = false;
  options.mode = HostMode::kCustom;
  const double cold = SecondsOf([&] { first = OpenOrFail(options); });
  const double warm = SecondsOf([&] { second = OpenOrFail(options); });
  fmt::print("[ measured ] Open: {:.3f} s, a second one {:.3f} s\n", cold, warm);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(&first->model(), &second->model());
  EXPECT_LT(warm, cold / 2);
}

TEST_F(SessionOnDemo, ModelAndText) {
  const std::unique_ptr<Session> session = OpenOrFail(Options(DemoModel(), "k4v4+seed=0+win=32"));
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->model().architecture, "llama");
  EXPECT_EQ(session->model().ctx_train, 8192);
  EXPECT_EQ(session->model().layers, std::vector<LayerShape>(30, LayerShape{9, 3, 64, 64}));
  EXPECT_EQ(session->kv(), FormatSpec(*ParseSpec("k4v4+win=32")));
  EXPECT_EQ(session->mode(), HostMode::kCustom);
  EXPECT_GT(session->threads(), 0);

  const std::string text = "Ships \u2014 wind\n  and r\u00e4in, <|im_start|> 42.";
  for (const bool special : {false, true}) {
    const Result<std::vector<int32_t>> tokens = session->Tokenize(text, special, false);
    ASSERT_TRUE(tokens);
    std::string back;
    for (const int32_t t : *tokens) back += session->Piece(t);
    EXPECT_THAT(back, HasSubstr(text));
  }
  EXPECT_TRUE(session->Tokenize("", false, false)->empty());

  const Result<std::string> prompt = session->ApplyChatTemplate(std::vector<ChatMessage>{{"user", "Who keeps it?"}});
  ASSERT_TRUE(prompt);
  EXPECT_THAT(*prompt, HasSubstr("<|im_start|>user\nWho keeps it?<|im_end|>\n<|im_start|>assistant\n"));
  const Result<std::vector<int32_t>> end = session->Tokenize("<|im_end|>", false, true);
  ASSERT_TRUE(end);
  ASSERT_EQ(end->size(), 1u);
  EXPECT_TRUE(session->IsEndOfGeneration(end->front()));
  EXPECT_FALSE(session->IsEndOfGeneration(session->Tokenize("ship", false, false)->front()));
}

TEST_F(SessionOnMade, NoChatTemplateIsSaid) {
  const std::unique_ptr<Session> session = OpenOrFail(Options(SmallLlama(), "f16"));
  ASSERT_NE(session, nullptr);
  const Result<std::string> prompt = session->ApplyChatTemplate(std::vector<ChatMessage>{{"user", "x"}});
  ASSERT_FALSE(prompt);
  EXPECT_EQ(prompt.error().code(), StatusCode::kUnsupported);
  EXPECT_THAT(prompt.error().message(), HasSubstr("no chat template"));
}

}  // namespace
}  // namespace tersekv::llama
