// SPDX-License-Identifier: Apache-2.0
// What a user reads when a spec string is wrong: the value, the limit, the remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "src/codec/spec_rules.h"
#include "src/codec/spec_text.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Error(std::string_view text) {
  const Result<KvSpec> spec = ParseSpec(text);
  if (spec) return "parsed";
  EXPECT_EQ(spec.error().code(), StatusCode::kInvalidArgument);
  return spec.error().message();
}

TEST(SpecErrors, UnknownTextNamesTheNearest) {
  EXPECT_EQ(Error("k4v"), "unknown KV spec 'k4v': nearest are k4v4, k4v3, k4v2; `tersekv run --kv list` prints all");
  EXPECT_THAT(Error("saef"), HasSubstr("nearest are safe"));
  EXPECT_THAT(Error("fp16"), HasSubstr("f16"));
  EXPECT_THAT(Error("q4_1"), HasSubstr("nearest are q4_0"));
  EXPECT_THAT(Error("kivi-k4tv4"), HasSubstr("nearest are kivi-k4v4"));
  EXPECT_THAT(Error("k4xv4"), HasSubstr("unknown KV spec 'k4xv4': nearest are k4v4"));
  EXPECT_THAT(Error("k4v4q8"), HasSubstr("unknown KV spec"));
  EXPECT_THAT(Error("kv4"), HasSubstr("unknown KV spec 'kv4'"));
  EXPECT_THAT(Error("k4v4-"), HasSubstr("unknown KV spec 'k4v4-'"));
  EXPECT_THAT(Error("safe-g32"), HasSubstr("unknown KV spec"));
}

TEST(SpecErrors, EmptyText) {
  EXPECT_THAT(Error(""), HasSubstr("empty KV spec: write one such as k4v4"));
  EXPECT_THAT(Error("+sink=0"), HasSubstr("has no base before its options: write one such as k4v4+sink=0"));
  EXPECT_THAT(Error(" "), HasSubstr("unknown KV spec ' '"));
}

TEST(SpecErrors, CaseAndSpacesGetAHint) {
  EXPECT_EQ(Error("K4V4"), "unknown KV spec 'K4V4': specs are lower case without spaces; did you mean k4v4?");
  EXPECT_THAT(Error("k4v4 + Sink=0"), HasSubstr("did you mean k4v4+sink=0?"));
  EXPECT_THAT(Error("Auto"), HasSubstr("did you mean auto?"));
  EXPECT_THAT(Error("K4V"), HasSubstr("nearest are k4v4, k4v3, k4v2"));
  EXPECT_THAT(Error("K4V"), HasSubstr("(specs are lower case without spaces)"));
}

TEST(SpecErrors, Widths) {
  EXPECT_EQ(Error("k9v4"), "unknown bit width 9 for K in 'k9v4': Lloyd-Max takes 2 to 8 bits; did you mean k8v4?");
  EXPECT_THAT(Error("k4v1"), HasSubstr("width 1 for V in 'k4v1': Lloyd-Max takes 2 to 8 bits; did you mean k4v2?"));
  EXPECT_THAT(Error("k0v99"), HasSubstr("width 0 for K in 'k0v99'"));
  EXPECT_THAT(Error("k0v99"), HasSubstr("did you mean k2v8?"));
  EXPECT_THAT(Error("k04v4"), HasSubstr("unknown bit width 04 for K"));
  EXPECT_THAT(Error("k4.0v4"), HasSubstr("unknown bit width 4.0 for K"));
  EXPECT_THAT(Error("k2.5v4"), HasSubstr("Lloyd-Max takes 2 to 8 bits; did you mean k3v4?"));
  EXPECT_THAT(Error("k5tv4"), HasSubstr("trellis takes 2 to 4 bits; did you mean k4tv4?"));
  EXPECT_THAT(Error("k4v4.5q"),
              HasSubstr("for V in 'k4v4.5q': 2-D VQ takes 2, 2.5, 3, 3.5 or 4 bits; did you mean k4v4q?"));
  EXPECT_THAT(Error("k2.6qv3q"), HasSubstr("did you mean k2.5qv3q?"));
  EXPECT_THAT(Error("k9pv4p"), HasSubstr("prod takes 2 to 8 bits; did you mean k8pv4p?"));
  EXPECT_THAT(Error("kivi-k1v4"), HasSubstr("kivi takes 2 to 8 bits; did you mean kivi-k2v4?"));
  EXPECT_THAT(Error("k1..v4"), HasSubstr("unknown bit width 1.. for K"));
}

TEST(SpecErrors, Groups) {
  const std::string limits = "a kivi value group is 16 to 1024 channels, a multiple of 8, such as -g32";
  for (const char* group : {"8", "20", "1032", "0", "032", "", "99999999999999999999", "-32", "+32", "3.2"}) {
    EXPECT_THAT(Error(std::string("kivi-k4v4-g") + group), HasSubstr(limits)) << group;
  }
  EXPECT_THAT(Error("k4v4-g32"), HasSubstr("group -g32 in 'k4v4-g32': only kivi has value groups"));
}

TEST(SpecErrors, Options) {
  EXPECT_EQ(Error("k4v4+foo=1"),
            "unknown option 'foo' in 'k4v4+foo=1': options are rot, mean, scale, norm, sink, win, page, seed");
  EXPECT_THAT(Error("k4v4+=1"), HasSubstr("unknown option ''"));
  EXPECT_THAT(Error("k4v4+"), HasSubstr("empty option in 'k4v4+': remove the extra '+'"));
  EXPECT_THAT(Error("k4v4+sink=0+"), HasSubstr("empty option"));
  EXPECT_THAT(Error("k4v4++sink=0"), HasSubstr("empty option"));
  EXPECT_THAT(Error("k4v4+sink"),
              HasSubstr("option sink in 'k4v4+sink' has no value: write sink=X, where X is 0 to 1024"));
  EXPECT_THAT(Error("k4v4+rot="), HasSubstr("has no value: write rot=X, where X is none, h1, h2 or haar"));
  EXPECT_THAT(Error("k4v4+sink=0+win=1+sink=0"), HasSubstr("option sink is given twice in"));
  EXPECT_THAT(
      Error("f16+sink=4"),
      HasSubstr("option sink in 'f16+sink=4' does not apply to the raw type f16, which takes only page: remove it"));
  EXPECT_THAT(Error("bf16+page=128+norm=ls"), HasSubstr("option norm in"));
}

TEST(SpecErrors, Values) {
  EXPECT_EQ(Error("k4v4+rot=h3"), "unknown value 'h3' of rot in 'k4v4+rot=h3': rot takes none, h1, h2 or haar");
  EXPECT_THAT(Error("k4v4+mean=on"), HasSubstr("mean takes off, stats, page or profile"));
  EXPECT_THAT(Error("k4v4+scale=1"), HasSubstr("scale takes off or on"));
  EXPECT_THAT(Error("k4v4+norm=l2"), HasSubstr("norm takes none, match, ls or unbiased"));
  EXPECT_THAT(Error("k4v4+page=32"), HasSubstr("unknown value '32' of page in 'k4v4+page=32': page takes 64 or 128"));
  EXPECT_EQ(Error("k4v4+sink=1025"), "sink 1025 in 'k4v4+sink=1025' is too large: sink takes 0 to 1024");
  EXPECT_THAT(Error("k4v4+win=65537"), HasSubstr("win takes 0 to 65536"));
  EXPECT_THAT(Error("k4v4+seed=18446744073709551616"), HasSubstr("seed takes 0 to 18446744073709551615"));
  for (const char* value : {"-1", "01", "00", "0x10", "1e3", "4.0", "=4", " 4", "4 "}) {
    EXPECT_THAT(Error(std::string("k4v4+sink=") + value), Not("parsed")) << value;
  }
  EXPECT_EQ(
      Error("k4v4+sink=-1"),
      "value '-1' of sink in 'k4v4+sink=-1' is not a number: sink takes 0 to 1024, digits only (no sign, spaces or "
      "leading zeros)");
}

TEST(SpecErrors, Lists) {
  EXPECT_THAT(ParseSpecList("").error().message(), HasSubstr("empty list of KV specs"));
  EXPECT_THAT(ParseSpecList("k4v4,,f16").error().message(),
              HasSubstr("element 2 of the KV spec list 'k4v4,,f16' is empty: remove the extra comma"));
  EXPECT_THAT(ParseSpecList("k4v4,").error().message(), HasSubstr("element 2"));
  EXPECT_THAT(ParseSpecList(",").error().message(), HasSubstr("element 1"));
  EXPECT_THAT(ParseSpecList("k4v4, f16").error().message(), HasSubstr("did you mean f16?"));
  EXPECT_THAT(ParseSpecList("f16,k9v4").error().message(), HasSubstr("unknown bit width 9"));
}

TEST(SpecErrors, QuotesAreShortAndPrintable) {
  EXPECT_EQ(Clip("a\n\x80\\"), "a\\x0a\\x80\\\\");
  EXPECT_EQ(Clip(std::string(60, 'x')), std::string(60, 'x'));
  EXPECT_EQ(Clip(std::string(61, 'x')), std::string(57, 'x') + "...");
  EXPECT_EQ(Clip(std::string(1000, '\0')).size(), 59U);  // 14 whole escapes and the mark
  EXPECT_THAT(Error(std::string(1000, 'z')), HasSubstr("'" + std::string(57, 'z') + "...'"));
}

TEST(SpecErrors, TextHelpers) {
  uint64_t n = 0;
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(ParseNumber("18446744073709551615", kMax, &n), NumberError::kNone);
  EXPECT_EQ(n, kMax);
  EXPECT_EQ(ParseNumber("18446744073709551616", kMax, &n), NumberError::kTooLarge);
  EXPECT_EQ(ParseNumber("184467440737095516150", kMax, &n), NumberError::kTooLarge);
  EXPECT_EQ(ParseNumber("0", 0, &n), NumberError::kNone);
  EXPECT_EQ(ParseNumber("7", 5, &n), NumberError::kTooLarge);
  EXPECT_EQ(ParseNumber("", kMax, &n), NumberError::kMalformed);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_THAT(NearestKnown("k8v", 2), ElementsAre("k8v8", "k8v7"));
}

TEST(SpecErrors, KvSpecsWithoutAText) {
  const auto error = [](auto change) {
    KvSpec spec = ParseSpec("k4v4").value();
    change(spec);
    return ValidateSpec(spec).message();
  };
  EXPECT_THAT(error([](KvSpec& s) { s.k.bits = 9; }), HasSubstr("9 bits for K: Lloyd-Max takes 2 to 8"));
  EXPECT_THAT(error([](KvSpec& s) { s.v = {Family::kF16, 16}; }), HasSubstr("K of Lloyd-Max with V of f16"));
  EXPECT_THAT(error([](KvSpec& s) { s.k.family = static_cast<Family>(99); }), HasSubstr("family 99"));
  EXPECT_THAT(error([](KvSpec& s) { s.rotation = static_cast<Rotation>(9); }), HasSubstr("no enumerator"));
  EXPECT_THAT(error([](KvSpec& s) { s.sink = -1; }), HasSubstr("sink -1"));
  EXPECT_THAT(error([](KvSpec& s) { s.win = 65537; }), HasSubstr("win 65537"));
  EXPECT_THAT(error([](KvSpec& s) { s.page = 32; }), HasSubstr("page takes 64 or 128"));
  EXPECT_THAT(error([](KvSpec& s) { s.group = 32; }), HasSubstr("group 32"));
  EXPECT_THAT(error([](KvSpec& s) { s.k.norm = NormMode::kNone; }), HasSubstr("norm none for K and ls for V"));
  EXPECT_THAT(error([](KvSpec& s) { s = KvSpec(), s.sink = 4; }), HasSubstr("raw type f16"));
  KvSpec page;
  page.page = 32;
  EXPECT_DEATH(FormatSpec(page), "check failed");
}

}  // namespace
}  // namespace tersekv
