// SPDX-License-Identifier: Apache-2.0
// Spec strings: canonical text, round trips, presets, defaults, lists, any bytes.
#include "tersekv/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/codec/list.h"
#include "src/codec/spec_rules.h"
#include "src/codec/spec_text.h"

namespace tersekv {
namespace {

using ::testing::ElementsAre;

std::string Canonical(std::string_view text) {
  const Result<KvSpec> spec = ParseSpec(text);
  return spec ? FormatSpec(*spec) : "error: " + spec.error().message();
}

TEST(Spec, CanonicalText) {
  const struct {
    const char *text, *canonical;
  } cases[] = {
      {"f32", "f32"},
      {"f16", "f16"},
      {"bf16+page=128", "bf16+page=128"},
      {"f16+page=64", "f16"},
      {"fp8", "fp8"},
      {"fp8-head+scale=off", "fp8-head"},
      {"fp8-tensor+rot=h1", "fp8-tensor+rot=h1"},
      {"q8_0+rot=h1", "q8_0+rot=h1"},
      {"iq4_nl+norm=none+sink=0", "iq4_nl"},
      {"k4v4", "k4v4"},
      {"k8v2", "k8v2"},
      {"k4tv3", "k4tv3"},
      {"k2.5qv3.5q", "k2.5qv3.5q"},
      {"k3pv2t", "k3pv2t"},
      {"k4v4+rot=h1+mean=stats+scale=on+sink=4+win=128+page=64+seed=0", "k4v4"},
      {"k4v4+seed=7+win=0+sink=0", "k4v4+sink=0+win=0+seed=7"},
      {"k4v4+page=128+norm=none+scale=off+mean=off+rot=haar", "k4v4+rot=haar+mean=off+scale=off+norm=none+page=128"},
      {"k4v4+norm=unbiased", "k4v4+norm=unbiased"},
      {"k4v4+norm=ls", "k4v4+norm=ls"},
      {"k4v4+mean=profile", "k4v4+mean=profile"},
      {"k4v4+sink=1024+win=65536+seed=18446744073709551615", "k4v4+sink=1024+win=65536+seed=18446744073709551615"},
      {"kivi-k4v4", "kivi-k4v4"},
      {"kivi-k8v2-g16+page=64", "kivi-k8v2-g16+page=64"},
      {"kivi-k3v2-g1024+win=128", "kivi-k3v2-g1024"},
      {"safe", "kivi-k4v4"},
      {"balanced", "kivi-k4v3"},
      {"compact", "kivi-k3v3"},
      {"aggressive", "kivi-k3v2-g32"},
      {"aggressive+win=256", "kivi-k3v2-g32+win=256"},
      {"auto", "auto"},
      {"auto+sink=8", "auto+sink=8"},
      // Raw TurboQuant, the negative control of the contract.
      {"k4v4+rot=haar+mean=off+scale=off+norm=none+sink=0+win=0",
       "k4v4+rot=haar+mean=off+scale=off+norm=none+sink=0+win=0"},
  };
  for (const auto& c : cases) EXPECT_EQ(Canonical(c.text), c.canonical) << c.text;
}

TEST(Spec, DefaultsOfTheContract) {
  const KvSpec pair = ParseSpec("k4tv3").value();
  EXPECT_EQ(pair, (KvSpec{.k = {Family::kTrellis, 4, NormMode::kUnbiased},
                          .v = {Family::kLloydMax, 3, NormMode::kLs},
                          .rotation = Rotation::kH1,
                          .mean = MeanMode::kStats,
                          .scale = true,
                          .sink = 4,
                          .win = 128,
                          .page = 64}));
  const KvSpec kivi = ParseSpec("aggressive").value();
  EXPECT_EQ(kivi, (KvSpec{.k = {Family::kKivi, 3}, .v = {Family::kKivi, 2}, .win = 128, .page = 128, .group = 32}));
  EXPECT_EQ(ParseSpec("f16").value(), KvSpec());
  EXPECT_EQ(ParseSpec("mxfp4").value(), (KvSpec{.k = {Family::kMxfp4, 4}, .v = {Family::kMxfp4, 4}}));
  const KvSpec ls = ParseSpec("k4v4+norm=ls").value();
  EXPECT_EQ(ls.k.norm, NormMode::kLs);
  EXPECT_EQ(ls.v.norm, NormMode::kLs);
  EXPECT_TRUE(ParseSpec("bf16").value().raw());
  EXPECT_FALSE(ParseSpec("auto").value().raw());
}

TEST(Spec, KnownSpecsParseAndAreDistinct) {
  const std::vector<std::string> known = KnownSpecs();
  EXPECT_EQ(std::set<std::string>(known.begin(), known.end()).size(), known.size());
  EXPECT_EQ(known.front(), "f32");
  EXPECT_EQ(known.back(), "auto");
  for (const std::string& text : known) {
    const bool preset = std::any_of(std::begin(kPresets), std::end(kPresets), [&](auto& p) { return p.name == text; });
    if (preset) {
      EXPECT_TRUE(ParseSpec(text)) << text;
    } else {
      EXPECT_EQ(Canonical(text), text);
    }
  }
  for (const FamilyRow& row : kFamilies) {
    EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const std::string& text) {
      return ParseSpec(text)->k.family == row.family;
    })) << row.name;
  }
}

TEST(Spec, Lists) {
  const auto specs = ParseSpecList("f16,k4v4+sink=0,safe");
  ASSERT_TRUE(specs);
  std::vector<std::string> texts;
  for (const KvSpec& spec : *specs) texts.push_back(FormatSpec(spec));
  EXPECT_THAT(texts, ElementsAre("f16", "k4v4+sink=0", "kivi-k4v4"));
  EXPECT_EQ(ParseSpecList("k4v3").value().size(), 1U);
}

// A valid spec with every member drawn.
KvSpec RandomSpec(std::mt19937_64* rng) {
  const auto below = [rng](size_t n) { return static_cast<size_t>((*rng)() % n); };
  const auto width = [&](const FamilyRow& row) {
    return row.widths.at(static_cast<int>(below(static_cast<size_t>(row.widths.count()))));
  };
  const FamilyRow& k = kFamilies[below(std::size(kFamilies))];
  const FamilyRow* v = &k;
  while (k.form == SpecForm::kPair && below(2) == 0) {
    const FamilyRow& other = kFamilies[below(std::size(kFamilies))];
    if (other.form == SpecForm::kPair) v = &other;
  }
  const int group = k.form == SpecForm::kKivi && below(2) == 0 ? static_cast<int>(16 + 8 * below(127)) : 0;
  KvSpec spec = DefaultsOf(k.family, width(k), v->family, width(*v), group);
  if (below(2) == 0) spec.page = kPages[below(2)];
  if (spec.raw()) return spec;
  if (below(2) == 0) spec.rotation = static_cast<Rotation>(below(4));
  if (below(2) == 0) spec.mean = static_cast<MeanMode>(below(4));
  if (below(2) == 0) spec.scale = !spec.scale;
  if (below(2) == 0) spec.k.norm = spec.v.norm = static_cast<NormMode>(below(4));
  if (below(2) == 0) spec.sink = static_cast<int>(below(kMaxSink + 1));
  if (below(2) == 0) spec.win = static_cast<int>(below(kMaxWin + 1));
  if (below(2) == 0) spec.seed = (*rng)() >> below(64);
  return spec;
}

TEST(Spec, ParseUndoesFormat) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 20000; ++i) {
    const KvSpec spec = RandomSpec(&rng);
    ASSERT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec).message();
    const std::string text = FormatSpec(spec);
    const Result<KvSpec> parsed = ParseSpec(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().message();
    ASSERT_EQ(*parsed, spec) << text;
    ASSERT_EQ(FormatSpec(*parsed), text);
  }
}

// Parses, or says why in a short printable message; what parses has a text that parses to the same.
void ExpectSane(const std::string& text) {
  const Result<KvSpec> spec = ParseSpec(text);
  if (spec) {
    ASSERT_TRUE(ValidateSpec(*spec).ok()) << text;
    const Result<KvSpec> again = ParseSpec(FormatSpec(*spec));
    ASSERT_TRUE(again) << text;
    ASSERT_EQ(*again, *spec) << text;
    return;
  }
  const std::string& message = spec.error().message();
  ASSERT_EQ(spec.error().code(), StatusCode::kInvalidArgument);
  ASSERT_FALSE(message.empty());
  ASSERT_LT(message.size(), 400U) << message;
  ASSERT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7F; })) << message;
}

TEST(Spec, AnyBytesAreSafe) {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 20000; ++i) {
    std::string text(rng() % 40, '\0');
    for (char& c : text) c = static_cast<char>(rng());
    ASSERT_NO_FATAL_FAILURE(ExpectSane(text));
    ASSERT_FALSE(ParseSpecList(text));
  }
}

TEST(Spec, MutationsAreSafe) {
  constexpr std::string_view kAlphabet = "kvtqpg0123456789.+-=_ ,hKV\n\x80";
  std::mt19937_64 rng(3);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = FormatSpec(RandomSpec(&rng));
    for (uint64_t n = 1 + rng() % 3; n > 0; --n) {
      const size_t at = rng() % (text.size() + 1);
      const char c = kAlphabet[rng() % kAlphabet.size()];
      switch (rng() % 4) {
        case 0:
          text.insert(at, 1, c);
          break;
        case 1:
          text.erase(at, 1 + rng() % 3);
          break;
        case 2:
          if (at < text.size()) text[at] = c;
          break;
        default:
          text.insert(at, text.substr(rng() % (text.size() + 1), rng() % 9));
          break;
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSane(text));
    parsed += ParseSpec(text) ? 1 : 0;
  }
  EXPECT_GT(parsed, 500);
  EXPECT_LT(parsed, 15000);
}

TEST(Spec, HugeTextsAreSafe) {
  constexpr size_t kBytes = size_t{4} << 20;
  for (const std::string start :
       {"k", "k4v", "k4v4-g", "kivi-k4v4-g", "k4v4+", "k4v4+sink=", "k4v4+seed=", "f16+", ""}) {
    for (const char c : {'4', '0', '+', '=', '.', 'k', 'A', ' ', '\0', '\xFF', '\\'}) {
      ASSERT_NO_FATAL_FAILURE(ExpectSane(start + std::string(kBytes, c)));
    }
  }
  ASSERT_FALSE(ParseSpecList(std::string(kBytes, ',')));
}

}  // namespace
}  // namespace tersekv
