// SPDX-License-Identifier: Apache-2.0
// UTF-8, progress, sizes, files, JSON envelope, verdict.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/doctor.h"
#include "cli/json_envelope.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/utf8.h"

namespace tersekv::cli {
namespace {

TEST(Utf8, SequencesComeOutWholeHoweverTheyAreCut) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream stream;
    const std::string first = stream.Push(text.substr(0, cut));
    EXPECT_EQ(text.compare(0, first.size(), first), 0);
    EXPECT_EQ(first + stream.Push(text.substr(cut)), text);
    EXPECT_EQ(stream.Flush(), "");
  }
  Utf8Stream bytes;
  std::string out;
  for (const char c : text) out += bytes.Push({&c, 1});
  EXPECT_EQ(out, text);
}

TEST(Utf8, WhatIsBrokenIsReplaced) {
  const std::string r = "\xEF\xBF\xBD";
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("\xFF"
                        "a"),
            r + "a");
  EXPECT_EQ(stream.Push("\xE2\x82"
                        "b"),
            r + "b");                                 // cut short
  EXPECT_EQ(stream.Push("\xC0\xAF"), r + r);          // overlong
  EXPECT_EQ(stream.Push("\xED\xA0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(stream.Push("\xF0\x9F\x98"), "");         // waits
  EXPECT_EQ(stream.Flush(), r);
  EXPECT_EQ(stream.Push("c"), "c");
}

TEST(CheckKv, KnowsOursAndStock) {
  EXPECT_EQ(*CheckKv("k4v4"), "k4v4");
  EXPECT_EQ(*CheckKv("stock-q8_0"), "stock-q8_0");
  EXPECT_EQ(CheckKv("stock-q3").error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckKv("k9v4").error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckKv("").error().code(), StatusCode::kInvalidArgument);
}

TEST(CheckKvList, SplitsTrimsAndDropsTwins) {
  EXPECT_EQ(*CheckKvList("f16, k4v4,stock-f16,k4v4"), (std::vector<std::string>{"f16", "k4v4", "stock-f16"}));
  EXPECT_FALSE(CheckKvList("k4v4,"));
  EXPECT_FALSE(CheckKvList(",k4v4"));
  EXPECT_FALSE(CheckKvList(""));
}

TEST(Progress, EveryQuarterOrOneRedrawnLine) {
  std::string lines;
  {
    Progress progress("prompt", false, [&](std::string_view s) { lines += s; });
    for (size_t i = 0; i <= 200; i += 10) progress.Update(i, 200);
  }
  EXPECT_EQ(lines,
            "prompt: 25% (50 of 200)\nprompt: 50% (100 of 200)\nprompt: 75% (150 of 200)\nprompt: 100% (200 of 200)\n");
  std::string line;
  {
    Progress progress("prompt", true, [&](std::string_view s) { line += s; });
    progress.Update(1, 2);
    progress.Update(1, 2);
    progress.Update(2, 2);
  }
  EXPECT_EQ(line, "\rprompt: 50% (1 of 2)\033[K\rprompt: 100% (2 of 2)\033[K\n");
  Progress("quiet", true, nullptr).Update(1, 2);
}

TEST(Progress, Units) {
  EXPECT_EQ(Duration(12.4), "12 s");
  EXPECT_EQ(Duration(200), "3 min 20 s");
  EXPECT_EQ(Duration(7500), "2 h 5 min");
  EXPECT_EQ(Size(512), "512 B");
  EXPECT_EQ(Size(3.2 * 1024 * 1024), "3.20 MiB");
}

TEST(Envelope, HasItsFiveKeys) {
  const Json json = Envelope(Json::array({1, 2}));
  std::vector<std::string> names;
  for (const auto& [name, value] : json.items()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"rows", "tersekv_version", "commit", "machine", "date"}));
  EXPECT_EQ(IsoDate(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(MachineFrom("processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nmodel name\t: other\n", 2),
            "Some CPU @ 2GHz, 2 cores");
  EXPECT_NE(MachineFrom("", 1).find(", 1 core"), std::string::npos);
  EXPECT_NO_THROW(Dump(Json("\xFF not UTF-8")));
}

TEST(Verdict, NamesEveryReason) {
  using State = Check::State;
  EXPECT_EQ(Verdict({{"a", State::kOk, "x"}, {"b", State::kInfo, "y"}}), "verdict: ready");
  EXPECT_EQ(Verdict({{"a", State::kFailed, "x"}, {"b", State::kOk, "y"}, {"c", State::kFailed, "z"}}),
            "verdict: NOT ready: a: x; c: z");
}

class Files : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const char* name) const { return folder_ + "/" + name; }
  const std::string folder_ = testing::TempDir() + "tersekv_cli_" + std::to_string(::getpid());
};

TEST_F(Files, WriteReplacesWholeFiles) {
  ASSERT_TRUE(CheckWritable(Path("a")).ok());
  ASSERT_TRUE(WriteText(Path("a"), "first").ok());
  ASSERT_TRUE(WriteText(Path("a"), "second").ok());
  EXPECT_EQ(*ReadText(Path("a"), "text"), "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_TRUE(WriteText("/dev/null", "gone").ok());
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
}

TEST_F(Files, ErrorsNameThePath) {
  for (const Status& status :
       {CheckWritable(Path("none/b")), CheckWritable(folder_), ReadText(Path("none"), "text").status(),
        ReadText(folder_, "text").status(), WriteText(Path("none/b"), "x")}) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(folder_), std::string::npos) << status.message();
  }
  EXPECT_TRUE(CheckWritable("").ok());
  EXPECT_TRUE(CheckWritable("-").ok());
}

}  // namespace
}  // namespace tersekv::cli
