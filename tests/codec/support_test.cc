// SPDX-License-Identifier: Apache-2.0
// The list of codecs as users see it: ListCodecs, CheckSupported, BitsSpec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "src/codec/list.h"
#include "tersekv/cache.h"
#include "tersekv/codec.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

using ::testing::HasSubstr;

// Empty when supported.
std::string Why(std::string_view text) {
  const Status status = CheckSupported(ParseSpec(text).value());
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnsupported) << text;
  return status.message();
}

TEST(Support, WhatThisVersionStores) {
  for (const char* text :
       {"f32", "f16", "bf16", "f16+page=128", "k4v4+rot=none", "k4v4+rot=h2", "k4v4+rot=haar", "k4v4+scale=off",
        "k4v4+mean=off+scale=off", "k4v4+norm=none", "k4v4+norm=match", "k4v4+sink=0+win=0", "k4v4+page=128+seed=5",
        "k4v4+rot=haar+mean=off+scale=off+norm=none+sink=0+win=0"}) {
    EXPECT_EQ(Why(text), "") << text;
  }
  ForEachLloydMaxBits([](auto k) {
    for (const int v : kLloydMaxBits) {
      const std::string text = "k" + std::to_string(decltype(k)::value) + "v" + std::to_string(v);
      EXPECT_EQ(Why(text), "") << text;
    }
  });
}

TEST(Support, ReasonAndRemedy) {
  EXPECT_THAT(Why("auto"), HasSubstr("use k4v4"));
  EXPECT_THAT(Why("k4v4+mean=off"), HasSubstr("scale=on needs a mean; add scale=off or use mean=stats"));
  for (const char* text : {"k4v4+rot=h2", "k4v4+mean=page", "k4v4+mean=profile", "k4tv3", "k4v3.5q", "k3pv3",
                           "aggressive", "q4_0+rot=h1+mean=stats+scale=on+sink=4+win=128"}) {
    EXPECT_EQ(Why(text), "") << text;
  }
}

TEST(Support, MalformedKvSpecIsInvalid) {
  KvSpec spec;
  spec.page = 32;
  EXPECT_EQ(CheckSupported(spec).code(), StatusCode::kInvalidArgument);
}

TEST(Support, EveryAvailableCodecOfTheListIsSupported) {
  std::set<std::string> specs;
  for (const CodecInfo& codec : ListCodecs()) {
    const Result<KvSpec> spec = ParseSpec(codec.spec);
    ASSERT_TRUE(spec) << codec.spec;
    EXPECT_EQ(FormatSpec(*spec), codec.spec);
    EXPECT_TRUE(CheckSupported(*spec).ok()) << codec.spec;
    EXPECT_FALSE(codec.description.empty());
    EXPECT_TRUE(specs.insert(codec.spec).second) << codec.spec;
  }
  for (const char* text : {"f32", "fp8", "iq4_nl", "k2v2", "k8v8", "k4tv4t", "k2.5qv2.5q", "k8pv8p", "kivi-k3v2-g32"}) {
    EXPECT_EQ(specs.count(text), 1U) << text;
  }
  EXPECT_EQ(specs.size(), 13U + 7 + 3 + 5 + 7 + 4);  // words without auto, Lloyd-Max, trellis, VQ, prod, kivi
}

TEST(Support, BitsOfASpec) {
  const struct {
    const char* text;
    int k, v;  // head dims
    double bits;
  } cases[] = {
      {"f32", 64, 64, 32},
      {"f16", 64, 128, 16},
      {"bf16", 128, 128, 16},
      {"k4v4", 64, 64, 4.25},
      {"k4v4", 128, 128, 4.125},
      {"k4v3", 64, 64, 3.75},
      {"k8v2", 64, 128, 4.1666666666666667},  // (8.25 * 64 + 2.125 * 128) / 192
      {"k4tv4t", 64, 64, 4.25},
      {"k2.5qv3q", 64, 64, 3},
      {"k3pv3p", 128, 128, 3.25},
      {"fp8", 128, 128, 8.25},
      {"fp8-head", 64, 128, 8},
      {"fp8-tensor", 128, 128, 8},
      {"int8", 128, 128, 8.125},
      {"mxfp4", 128, 128, 4.25},
      {"nvfp4", 64, 64, 4.5},
      {"q8_0", 64, 64, 8.5},
      {"q5_0", 64, 64, 5.5},
      {"q4_0", 64, 64, 4.5},
      {"iq4_nl", 64, 64, 4.5},
      {"safe", 128, 128, 4.25},
      {"balanced", 128, 128, 3.75},
      {"compact", 128, 128, 3.25},
      {"aggressive", 128, 128, 3.125},
      {"safe", 64, 64, 4.375},
      {"aggressive", 64, 64, 3.125},
      {"kivi-k4v4-g128", 64, 64, 4.375},
      {"kivi-k4v4+page=64", 128, 128, 4.375},
  };
  for (const auto& c : cases) EXPECT_DOUBLE_EQ(BitsSpec(ParseSpec(c.text).value(), c.k, c.v), c.bits) << c.text;
}

}  // namespace
}  // namespace tersekv
