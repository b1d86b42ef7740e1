// SPDX-License-Identifier: Apache-2.0
// Every architecture of the table in docs/hosts.md: works as it says, or is refused when the model is opened.
#include "tests/hosts/architectures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/hosts/logits.h"
#include "tests/hosts/test_models.h"

namespace tersekv::llama {
namespace {

constexpr char kPage[] = TERSEKV_TEST_SOURCE_DIR "/docs/hosts.md";
constexpr char kBegin[] = "<!-- made by tests/hosts/architectures_test.cc, TERSEKV_UPDATE_DOCS=1 -->\n";

std::string ModelOf(const Architecture& a) {
  std::string name = fmt::format("{}{}.gguf", a.name, a.arguments);
  std::erase_if(name, [](char c) { return c == ' '; });
  return MakeModel(name, fmt::format("random --arch {} {}", a.name, a.arguments));
}

class EveryArchitecture : public MadeModelTest, public ::testing::WithParamInterface<Architecture> {
 protected:
  void Check(const std::string& path, const Schedule& schedule, const std::string& what) {
    const std::unique_ptr<Session> stock = OpenOrFail(Options(path, "stock-f32"));
    ASSERT_NE(stock, nullptr);
    const int vocab = stock->model().vocab;
    const std::vector<float> reference = RunSchedule(stock.get(), schedule);
    const Difference f32 = Compare(fmt::format("{}, f32, {}", GetParam().name, what), reference,
                                   RunSchedule(Options(path, "f32"), schedule), vocab);
    EXPECT_LE(f32.relative_rms, GetParam().limit);
    EXPECT_EQ(f32.argmax_moved, 0);
    const std::unique_ptr<Session> packed = OpenOrFail(Options(path, "k8v8"));
    ASSERT_NE(packed, nullptr);
    const Difference k8v8 = Compare(fmt::format("{}, k8v8, {}", GetParam().name, what), reference,
                                    RunSchedule(packed.get(), schedule), vocab);
    EXPECT_GT(packed->Usage().tokens_packed, 100);
    EXPECT_GT(k8v8.relative_rms, 0);
    EXPECT_LE(k8v8.kl_mean, GetParam().kl_limit);
  }
};

using Served = EveryArchitecture;
using Refused = EveryArchitecture;

TEST_P(Served, NineHundredTokens) { Check(ModelOf(GetParam()), OneSequence(320, 700, 230, 200), "one sequence"); }

TEST_P(Served, TwoSequences) {
  Check(ModelOf(GetParam()), llama::TwoSequences(320, 420, 300, 60, 10), "two sequences");
}

TEST_P(Served, Overwrite) {
  const std::string path = ModelOf(GetParam());
  const Schedule schedule = OneSequence(320, 300, 150, 10);
  SessionOptions options = Options(path, "f32");
  options.mode = HostMode::kOverwrite;
  const Difference d = Compare(fmt::format("{}, f32, overwrite", GetParam().name),
                               RunSchedule(Options(path, "stock-f32"), schedule), RunSchedule(options, schedule), 320);
  EXPECT_LE(d.relative_rms, GetParam().limit);
}

TEST_P(Refused, AtLoadWithTheReason) {
  const std::string path = ModelOf(GetParam());
  const Result<std::unique_ptr<Session>> session = Session::Open(Options(path, "k4v4"));
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code(), StatusCode::kUnsupported) << session.error().ToString();
  EXPECT_THAT(session.error().message(),
              ::testing::AllOf(::testing::HasSubstr(GetParam().refused), ::testing::HasSubstr("stock-f16")));
}

std::vector<Architecture> Rows(bool refused) {
  std::vector<Architecture> rows;
  for (const Architecture& a : Architectures()) {
    if ((a.refused != nullptr) == refused) rows.push_back(a);
  }
  return rows;
}

std::string NameOf(const ::testing::TestParamInfo<Architecture>& info) {
  std::string name = info.param.name;
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Architectures, Served, ::testing::ValuesIn(Rows(false)), NameOf);
INSTANTIATE_TEST_SUITE_P(Architectures, Refused, ::testing::ValuesIn(Rows(true)), NameOf);

std::string Table() {
  std::string table = "| architecture | models | what is special | |\n|---|---|---|---|\n";
  for (const Architecture& a : Architectures()) {
    const std::string verdict =
        a.refused != nullptr ? fmt::format("refused: {}", a.refused) : fmt::format("works, f32 within {:.0e}", a.limit);
    table += fmt::format("| {} | {} | {} | {} |\n", a.name, a.models, a.attention, verdict);
  }
  return table;
}

TEST(HostsPage, HasTheTable) {
  std::stringstream text;
  text << std::ifstream(kPage).rdbuf();
  std::string page = text.str();
  const size_t begin = page.find(kBegin);
  ASSERT_NE(begin, std::string::npos) << kPage;
  const size_t first = begin + sizeof kBegin - 1, end = page.find("\n\n", first);
  ASSERT_NE(end, std::string::npos);
  if (EnvironmentOr("TERSEKV_UPDATE_DOCS", "0") == "1") {
    page.replace(first, end + 1 - first, Table());
    std::ofstream(kPage) << page;
    return;
  }
  EXPECT_EQ(page.substr(first, end + 1 - first), Table()) << "run this test with TERSEKV_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace tersekv::llama
