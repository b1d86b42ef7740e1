// SPDX-License-Identifier: Apache-2.0
#include "tersekv/numbers.h"

#include <gtest/gtest.h>

#include <clocale>

namespace tersekv {
namespace {

TEST(ParseWhole, TakesOneNumberAndNothingElse) {
  EXPECT_EQ(ParseWhole("4096"), 4096);
  EXPECT_EQ(ParseWhole("-3"), -3);
  EXPECT_EQ(ParseWhole("9223372036854775807"), INT64_MAX);
  for (const char* bad : {"", " 1", "1 ", "1.5", "+1", "0x10", "9223372036854775808", "1k"}) {
    EXPECT_FALSE(ParseWhole(bad)) << bad;
  }
}

TEST(ParseReal, MeansTheSameInEveryLocale) {
  std::string before = std::setlocale(LC_ALL, nullptr);
  for (const char* locale : {"C", "de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"}) {
    if (std::setlocale(LC_ALL, locale) == nullptr) continue;  // not on this machine
    EXPECT_EQ(ParseReal("3.5"), 3.5) << locale;
    EXPECT_EQ(ParseReal("1e3"), 1000.0) << locale;
    EXPECT_FALSE(ParseReal("3,5")) << locale;
  }
  std::setlocale(LC_ALL, before.c_str());
  for (const char* bad : {"", "nan", "inf", "-inf", "1e999", "3.5x", " 3.5", "four"})
    EXPECT_FALSE(ParseReal(bad)) << bad;
}

TEST(ParseBytes, SuffixesAndErrors) {
  EXPECT_EQ(*ParseBytes("64M"), size_t{64} << 20);
  EXPECT_EQ(*ParseBytes("1.5k"), 1536u);
  EXPECT_EQ(*ParseBytes("2GiB"), size_t{2} << 30);
  EXPECT_EQ(*ParseBytes("2gb"), size_t{2} << 30);
  EXPECT_EQ(*ParseBytes("1T"), size_t{1} << 40);
  EXPECT_EQ(*ParseBytes("123"), 123u);
  EXPECT_EQ(*ParseBytes("123B"), 123u);
  EXPECT_EQ(*ParseBytes("1.0"), 1u);
  for (const char* bad : {"", "M", "-1", "64X", "1.2.3M", "64MM", "0", "0.1", "64 M", ".", "nan", "64iB", "64Mi", "1e3",
                          "lots", "64MiBB"}) {
    const auto result = ParseBytes(bad);
    ASSERT_FALSE(result) << bad;
    EXPECT_NE(result.error().message().find(std::string("'") + bad + "'"), std::string::npos);
  }
  EXPECT_FALSE(ParseBytes("99999999999G"));
}

}  // namespace
}  // namespace tersekv
