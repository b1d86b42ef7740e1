// SPDX-License-Identifier: Apache-2.0
// Session files: what was saved goes on bit for bit; what is damaged is found out; a killed writer leaves a whole file.
#include "tersekv/session.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/io/file.h"
#include "src/io/session_header.h"
#include "tersekv/version.h"
#include "tests/reference/rows.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

namespace fs = std::filesystem;

using reference::Model;
using reference::RunStep;
using reference::Token;
using reference::TokenRun;
using ::testing::HasSubstr;

const std::vector<LayerShape> kTwoLayers = {{2, 1, 32, 32}, {4, 2, 32, 64}};
const ModelIdentity kModel = {"made-up", "0123abcd", {}};

// What the tokens of a sequence are does not matter to a cache.
std::vector<int32_t> TokensOf(const KvCache& cache, int32_t seq) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < cache.Length(seq); ++i) tokens.push_back(static_cast<int32_t>(i * 7 % 1000));
  return tokens;
}

std::string Serialized(const KvCache& cache, int32_t seq) {
  const Result<std::string> bytes = SerializeSession(cache, seq, TokensOf(cache, seq), kModel);
  EXPECT_TRUE(bytes) << bytes.status().ToString();
  return bytes ? *bytes : "";
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("tersekv_session_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }
  size_t Files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

class Sessions : public ::testing::TestWithParam<const char*> {};

TEST_P(Sessions, GoOnBitForBit) {
  const Folder folder;
  Model model = reference::MakeModel(GetParam(), kTwoLayers);
  for (const int rollback : {0, 6}) {
    for (const bool windows : {false, true}) {
      model.config.rollback = rollback;
      model.config.windows = windows ? std::vector<int32_t>{150, 0} : std::vector<int32_t>();
      for (const int length : {1, 100, 132, 133, 300, 517}) {
        SCOPED_TRACE(testing::Message() << rollback << windows << " " << length);
        auto cache = reference::MakeCache(model), other = reference::MakeCache(model);
        (void)RunStep(cache.get(), model, TokenRun(4, 0, length));
        ASSERT_TRUE(length != 517 || cache->RemoveRange(4, 140, 260).ok());
        ASSERT_TRUE(length != 300 || cache->RemoveRange(4, 120, 140).ok());
        const std::string path = folder.File("a.session");
        ASSERT_TRUE(SaveSession(path, *cache, 4, TokensOf(*cache, 4), kModel).ok());
        const Result<SavedSession> saved = OpenSession(path);
        ASSERT_TRUE(saved) << saved.status().ToString();
        EXPECT_EQ(saved->tokens, TokensOf(*cache, 4));
        EXPECT_EQ(saved->spec, FormatSpec(model.config.spec));
        EXPECT_EQ(saved->bytes, fs::file_size(path));
        const Status restored = RestoreSession(*saved, kModel, other.get(), 0);
        ASSERT_TRUE(restored.ok()) << restored.ToString();
        EXPECT_EQ(other->Length(0), cache->Length(4));
        EXPECT_EQ(other->Usage().pages, cache->Usage().pages);
        EXPECT_EQ(other->Usage().raw_rows, cache->Usage().raw_rows);
        EXPECT_EQ(other->Usage().stats, cache->Usage().stats);
        EXPECT_EQ(Serialized(*other, 0), Serialized(*cache, 4));
        std::vector<Token> next = TokenRun(4, length, 90, 2), same = TokenRun(0, length, 90, 2);
        ASSERT_TRUE(RunStep(cache.get(), model, next) == RunStep(other.get(), model, same));
        EXPECT_EQ(Serialized(*other, 0), Serialized(*cache, 4));
        other->Remove(0);
        EXPECT_EQ(other->Usage().bytes_used, 0u);
      }
    }
  }
  EXPECT_EQ(folder.Files(), 1u) << "no temporary file stays";
}

INSTANTIATE_TEST_SUITE_P(Specs, Sessions,
                         ::testing::Values("k4v4", "k3v5+sink=0+win=0", "k4v4+mean=page+win=40",
                                           "kivi-k4v4+page=64+win=30+sink=2", "k3tv3t+sink=7+win=33", "f16", "f32"));

// Every length that is too short, and every byte that is not what was written.
TEST(Session, DamageIsFoundOut) {
  const Model model = reference::MakeModel("k2v2+sink=1+win=3", {{1, 1, 32, 32}});
  auto cache = reference::MakeCache(model);
  (void)RunStep(cache.get(), model, TokenRun(0, 0, 150));
  const std::string good = Serialized(*cache, 0);
  ASSERT_TRUE(ParseSession(good, "good"));
  for (size_t length = 0; length < good.size(); ++length) {
    const std::string part = good.substr(0, length);  // its own memory: reading behind it would be found
    ASSERT_FALSE(ParseSession(part, "part")) << length;
  }
  EXPECT_FALSE(ParseSession(good + std::string(64, '\0'), "more"));
  std::string bad = good;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {1, 0x80, 0xff}) {
      bad[i] = static_cast<char>(good[i] ^ flip);
      const Result<SavedSession> parsed = ParseSession(bad, "bad");
      ASSERT_FALSE(parsed) << "byte " << i;
      ASSERT_FALSE(parsed.error().message().empty());
    }
    bad[i] = good[i];
  }
}

// The same for a larger file, at a sample of its bytes, through the file system.
TEST(Session, DamageOfLargeFilesIsFoundOut) {
  const Folder folder;
  const Model model = reference::MakeModel("k8v8", {{4, 2, 128, 128}, {4, 2, 128, 128}});
  auto cache = reference::MakeCache(model);
  (void)RunStep(cache.get(), model, TokenRun(0, 0, 1500));
  const std::string path = folder.File("large"), good = Serialized(*cache, 0);
  ASSERT_GT(good.size(), size_t{1} << 20);
  reference::Random random(4);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    const size_t at = random.Below(good.size());
    if (i % 3 == 0) {
      bad.resize(at);
    } else {
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.Below(8)));
    }
    std::ofstream(path, std::ios::binary) << bad;
    ASSERT_FALSE(OpenSession(path)) << at;
  }
  EXPECT_EQ(OpenSession(folder.File("none")).status().code(), StatusCode::kNotFound);
  std::ofstream(path, std::ios::binary) << "";
  EXPECT_EQ(OpenSession(path).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(OpenSession(folder.File("")).status().code(), StatusCode::kInvalidArgument) << "a folder";
}

TEST(Session, OnlyWhereItWasMade) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  (void)RunStep(cache.get(), model, TokenRun(0, 0, 200));
  const std::string bytes = Serialized(*cache, 0);
  const Result<SavedSession> saved = ParseSession(bytes, "it");
  ASSERT_TRUE(saved);
  const auto why = [&](const Model& other, const ModelIdentity& identity) {
    auto target = reference::MakeCache(other);
    const Status status = RestoreSession(*saved, identity, target.get(), 0);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(target->Usage().bytes_used, target->Usage().stats);
    return status.message();
  };
  EXPECT_THAT(why(model, {"another", "ffff", {}}), testing::AllOf(HasSubstr("made-up"), HasSubstr("another")));
  EXPECT_THAT(why(reference::MakeModel("k4v3", kTwoLayers), kModel),
              testing::AllOf(HasSubstr("k4v4"), HasSubstr("k4v3")));
  EXPECT_THAT(why(reference::MakeModel("k4v4", {{2, 1, 32, 32}}), kModel), HasSubstr("layers"));
  EXPECT_THAT(why(reference::MakeModel("k4v4", {{2, 1, 32, 32}, {4, 2, 64, 64}}), kModel), HasSubstr("layer 1"));
  Model bits = model;
  bits.config.layer_bits = {{4, 4}, {4, 3}};
  EXPECT_THAT(why(bits, kModel), HasSubstr("--bits"));
  Model later_layers = model;
  later_layers.config.first_layer = 3;
  EXPECT_THAT(why(later_layers, kModel), testing::AllOf(HasSubstr("from 0 on"), HasSubstr("from 3 on")));
  Model given = model;
  for (const LayerShape& s : kTwoLayers) {
    const size_t k = static_cast<size_t>(s.kv_heads * s.head_dim_k), v = static_cast<size_t>(s.kv_heads * s.head_dim_v);
    given.config.statistics.push_back({std::vector<float>(k, 0.5f), std::vector<float>(k, 2.0f),
                                       std::vector<float>(v, 0.5f), std::vector<float>(v, 2.0f)});
  }
  EXPECT_THAT(why(given, kModel), HasSubstr("profile"));
  ASSERT_TRUE(cache->Fork(0, 1).ok());
  EXPECT_THAT(RestoreSession(*saved, kModel, cache.get(), 1).message(), HasSubstr("holds 200 tokens"));
  Model small = model;
  small.config.byte_budget = 20000;
  EXPECT_EQ(RestoreSession(*saved, kModel, reference::MakeCache(small).get(), 0).code(), StatusCode::kOutOfBudget);
  const std::vector<int32_t> wrong(3);
  EXPECT_EQ(SerializeSession(*cache, 0, wrong, kModel).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeSession(*cache, 9, {}, kModel).status().code(), StatusCode::kNotFound);
  std::string later = bytes;
  later[8] = kSessionVersion + 1;
  EXPECT_EQ(ParseSession(later, "later").status().code(), StatusCode::kUnsupported);
}

// Numbers that would take memory before a page is there: refused by their sum, from the header alone.
TEST(Session, HeadersAreHeldToWhatAFileCanHave) {
  SessionHeader header;
  header.spec = "k4v4";
  header.places = header.tokens = int64_t{1} << 30;
  const size_t layers = 4096, pages = static_cast<size_t>(kMostSessionPages) / layers;
  for (size_t l = 0; l < layers; ++l) {
    header.layers.push_back({1, 1, 32, 32});
    SessionHeader::Layer& layer = header.sections.emplace_back();
    layer.pages = layer.gone = pages;
  }
  const Result<std::string> most = FormatSessionHeader(header);
  ASSERT_TRUE(most) << most.status().ToString();
  ASSERT_TRUE(ParseSessionHeader(*most, "most"));
  header.sections.back().pages = ++header.sections.back().gone;
  EXPECT_EQ(FormatSessionHeader(header).status().code(), StatusCode::kUnsupported);
  std::string more = *most;
  const std::string last = fmt::format("[{},{},0]", pages, pages);
  const size_t at = more.rfind(last);
  ASSERT_NE(at, std::string::npos);
  more.replace(at, last.size(), fmt::format("[{},{},0]", pages + 1, pages));
  EXPECT_EQ(ParseSessionHeader(more, "more").status().code(), StatusCode::kDataLoss);
  more.replace(at, last.size(), fmt::format("[{},{},0]", int64_t{1} << 24, 0));
  EXPECT_EQ(ParseSessionHeader(more, "many").status().code(), StatusCode::kDataLoss);
}

// A file of this format version: session_2.tkvs was written by SerializeSession from these rows. It is read in every
// later version that reads version 2.
TEST(Session, GoldenFile) {
  CacheConfig config;
  config.spec = ParseSpec("k8v4+sink=2+win=5").value();
  config.layers = {{2, 1, 32, 32}, {1, 1, 32, 48}};
  config.windows = {70, 0};
  config.first_layer = 3;
  auto cache = KvCache::Create(config).value();
  const auto value = [](int layer, int side, int token, int c) {
    return static_cast<float>((token * 37 + c * 11 + layer * 5 + side * 3) % 97 - 48) / 16;
  };
  const auto row = [&](int layer, int side, int token) {
    std::vector<float> values;
    const LayerShape& shape = config.layers[static_cast<size_t>(layer)];
    for (int c = 0; c < (side == 0 ? shape.head_dim_k : shape.head_dim_v); ++c) {
      values.push_back(value(layer, side, token, c));
    }
    return values;
  };
  for (int token = 0; token < 250; ++token) {
    const StepToken step = {0, token};
    ASSERT_TRUE(cache->BeginStep({&step, 1}).ok());
    for (const int layer : {0, 1}) {
      cache->WriteRows(layer, Kv::kK, row(layer, 0, token).data(), 0, 0, 1);
      cache->WriteRows(layer, Kv::kV, row(layer, 1, token).data(), 0, 0, 1);
    }
    ASSERT_TRUE(cache->EndStep().ok());
  }
  ASSERT_TRUE(cache->RemoveRange(0, 200, 210).ok());
  const std::string path = std::string(TERSEKV_TEST_GOLDEN) + "/session_2.tkvs";
  if (std::getenv("TERSEKV_WRITE_GOLDEN") != nullptr) {
    ASSERT_TRUE(SaveSession(path, *cache, 0, TokensOf(*cache, 0), kModel).ok());
  }
  const Result<SavedSession> saved = OpenSession(path);
  ASSERT_TRUE(saved) << saved.status().ToString();
  EXPECT_EQ(saved->version, 2);
  EXPECT_EQ(saved->tokens, TokensOf(*cache, 0));
  auto other = KvCache::Create(config).value();
  const Status restored = RestoreSession(*saved, kModel, other.get(), 7);
  ASSERT_TRUE(restored.ok()) << restored.ToString();
  ASSERT_THAT(other->Positions(7), testing::ElementsAreArray(cache->Positions(0)));
  for (const int layer : {0, 1}) {
    const int64_t first = layer == 0 ? 200 : 0, n = 240 - first;  // tokens, not positions
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const size_t d = row(layer, side == Kv::kV ? 1 : 0, 0).size();
      std::vector<float> rows(static_cast<size_t>(n) * d);
      const ptrdiff_t stride = static_cast<ptrdiff_t>(d * sizeof(float));
      ASSERT_TRUE(other->ReadRows(7, layer, side, first, n, rows.data(), stride).ok());
      const std::span<const int32_t> positions = other->Positions(7);
      double error = 0, power = 0;
      for (int64_t t = 0; t < n; ++t) {
        const auto wanted = row(layer, side == Kv::kV ? 1 : 0, positions[static_cast<size_t>(first + t)]);
        for (size_t c = 0; c < d; ++c) {
          error += std::pow(rows[static_cast<size_t>(t) * d + c] - wanted[c], 2);
          power += std::pow(wanted[c], 2);
        }
      }
      EXPECT_LT(error, (side == Kv::kK ? 1e-4 : 2e-2) * power) << layer;
    }
  }
  if (saved->tersekv_version != Version()) return;
  EXPECT_EQ(Serialized(*other, 7), ReadFile(path, "golden", 1 << 20).value());
}

TEST(Session, SaysHowManyTokensAreReusable) {
  const Model model = reference::MakeModel("k4v4", kTwoLayers);
  auto cache = reference::MakeCache(model);
  (void)RunStep(cache.get(), model, TokenRun(0, 0, 50));
  const std::string bytes = Serialized(*cache, 0);
  const Result<SavedSession> saved = ParseSession(bytes, "it");
  ASSERT_TRUE(saved);
  std::vector<int32_t> wanted = saved->tokens;
  EXPECT_EQ(saved->Reusable(wanted), 50);
  wanted.push_back(3);
  EXPECT_EQ(saved->Reusable(wanted), 50);
  wanted[20] ^= 1;
  EXPECT_EQ(saved->Reusable(wanted), 20);
  EXPECT_EQ(saved->Reusable({}), 0);
}

// A process that saves again and again is killed at a random moment: the file is one of those it saved, whole.
TEST(Session, KillingTheWriterLeavesAWholeFile) {
  const Folder folder;
  const std::string path = folder.File("s");
  const Model model = reference::MakeModel("k4v4", {{4, 2, 64, 64}, {4, 2, 64, 64}});
  auto cache = reference::MakeCache(model);
  std::vector<std::string> versions;
  for (int i = 0; i < 2; ++i) {
    (void)RunStep(cache.get(), model, TokenRun(0, 400 * i, 400));
    versions.push_back(Serialized(*cache, 0));
  }
  ASSERT_TRUE(WriteFileAtomically(path, versions[0], "session").ok());
  reference::Random random(1);
  int seen[2] = {};
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = round;; ++i) (void)WriteFileAtomically(path, versions[static_cast<size_t>(i % 2)], "session");
    }
    ::usleep(static_cast<useconds_t>(random.Below(6000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const Result<SavedSession> saved = OpenSession(path);
    ASSERT_TRUE(saved) << saved.status().ToString();
    const size_t which = saved->tokens.size() == 400 ? 0 : 1;
    ASSERT_EQ(saved->bytes, versions[which].size());
    ++seen[which];
  }
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
}

}  // namespace
}  // namespace tersekv
