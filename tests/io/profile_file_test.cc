// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "src/io/crc64.h"
#include "src/io/profile_fields.h"
#include "src/io/safetensors.h"
#include "tersekv/profile.h"
#include "tests/io/profiles.h"

namespace tersekv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallProfile;
namespace fs = std::filesystem;

std::string Bytes(const Profile& profile) {
  const Result<std::string> bytes = SerializeProfile(profile);
  EXPECT_TRUE(bytes) << bytes.status().ToString();
  return bytes ? *bytes : "";
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("tersekv_profile_test_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }
  size_t count() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  fs::path path_;
};

// Writes fields as they are, with a good checksum around them.
Status ParseError(const SafeTensors& fields) { return ParseProfile(WriteSafeTensors(fields), "p.tkv").status(); }

TEST(Crc64, KnownValue) {
  EXPECT_EQ(Crc64("123456789"), 0x995dc9bbdf1939faU);
  EXPECT_EQ(Crc64("6789", Crc64("12345")), 0x995dc9bbdf1939faU);
}

TEST(ProfileFile, RoundTrip) {
  const Profile profile = SmallProfile();
  const std::string bytes = Bytes(profile);
  const Result<Profile> back = ParseProfile(bytes, "p");
  ASSERT_TRUE(back) << back.status().ToString();
  EXPECT_TRUE(*back == profile);
  EXPECT_EQ(Bytes(*back), bytes);
}

// The same header with eight spaces after its first brace, under a good checksum.
TEST(ProfileFile, OtherBytesOfTheSameProfileAreRefused) {
  const std::string bytes = Bytes(SmallProfile());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::string text = bytes.substr(8, length), spaced(8, '\0');
  length += 8;
  std::memcpy(spaced.data(), &length, 8);
  spaced += text.insert(1, 8, ' ') + bytes.substr(length);
  const std::string field = "\"checksum\":\"";
  const size_t digits = spaced.find(field) + field.size();
  spaced.replace(digits, 16, 16, '0');
  spaced.replace(digits, 16, fmt::format("{:016x}", Crc64(spaced)));
  const Status status = ParseProfile(spaced, "p.tkv").status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("other bytes"));
}

TEST(ProfileFile, IsSafetensors) {
  const std::string bytes = Bytes(SmallProfile());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["format"], "tersekv-profile");
  EXPECT_EQ(header["layers.0.k.mean"]["dtype"], "F32");
  EXPECT_EQ(header["layers.0.k.mean"]["shape"], nlohmann::json({2, 8}));
  EXPECT_EQ(header["layers.0.k.mean"]["data_offsets"], nlohmann::json({0, 64}));
  float value = 0;
  std::memcpy(&value, bytes.data() + 8 + length + 4, 4);
  EXPECT_EQ(value, -1.25F);
}

TEST(ProfileFile, TruncationAtEveryLengthIsFound) {
  const std::string bytes = Bytes(SmallProfile());
  for (size_t n = 0; n < bytes.size(); ++n) {
    const Result<Profile> part = ParseProfile(std::string_view(bytes).substr(0, n), "p");
    ASSERT_FALSE(part) << n;
    ASSERT_EQ(part.error().code(), StatusCode::kDataLoss) << n << ": " << part.error().ToString();
  }
  EXPECT_FALSE(ParseProfile(bytes + " ", "p"));
}

TEST(ProfileFile, EveryFlippedByteIsFound) {
  const std::string bytes = Bytes(SmallProfile());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const Result<Profile> read = ParseProfile(damaged, "p");
      ASSERT_FALSE(read) << i << " " << flip;
      ASSERT_EQ(read.error().code(), StatusCode::kDataLoss) << i << ": " << read.error().ToString();
    }
  }
}

TEST(ProfileFile, ErrorsNameFileFieldFoundAndExpected) {
  SafeTensors fields = FieldsOfProfile(SmallProfile());
  fields.metadata["format_version"] = "2";
  Status status = ParseError(fields);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("p.tkv"), HasSubstr("format_version"), HasSubstr("is 2"), HasSubstr("1")));

  fields = FieldsOfProfile(SmallProfile());
  fields.metadata["format"] = "pt";
  EXPECT_THAT(ParseError(fields).message(),
              AllOf(HasSubstr("'format'"), HasSubstr("'pt'"), HasSubstr("tersekv-profile")));

  fields = FieldsOfProfile(SmallProfile());
  fields.metadata["channel_order"] = "zigzag";
  EXPECT_THAT(ParseError(fields).message(), AllOf(HasSubstr("channel_order"), HasSubstr("zigzag"), HasSubstr("half")));

  fields = FieldsOfProfile(SmallProfile());
  fields.metadata.erase("tokens");
  EXPECT_THAT(ParseError(fields).message(), AllOf(HasSubstr("tokens"), HasSubstr("missing")));

  for (const char* layers : {"[{\"heads\":\"x\"}]", "[{\"heads\":1e99}]", "[{\"heads\":99999999999999999999}]", "[3]",
                             "{", "[{\"heads\":3000000000}]"}) {
    fields = FieldsOfProfile(SmallProfile());
    fields.metadata["layers"] = layers;
    status = ParseError(fields);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << layers;
    EXPECT_THAT(status.message(), HasSubstr("layers")) << layers;
  }

  fields = FieldsOfProfile(SmallProfile());
  fields.tensors[1].name = "layers.0.k.scales";
  EXPECT_THAT(ParseError(fields).message(), AllOf(HasSubstr("layers.0.k.scale"), HasSubstr("layers.0.k.scales")));

  fields = FieldsOfProfile(SmallProfile());
  fields.tensors[1].shape = {8, 2};
  EXPECT_THAT(ParseError(fields).message(),
              AllOf(HasSubstr("layers.0.k.scale"), HasSubstr("[8, 2]"), HasSubstr("[2, 8]")));

  fields = FieldsOfProfile(SmallProfile());
  fields.tensors.pop_back();
  EXPECT_THAT(ParseError(fields).message(), AllOf(HasSubstr("layers.1.sink_ratio"), HasSubstr("missing")));

  fields = FieldsOfProfile(SmallProfile());
  fields.tensors.push_back({"more", {1}, {1}});
  EXPECT_THAT(ParseError(fields).message(), HasSubstr("more"));

  fields = FieldsOfProfile(SmallProfile());
  fields.tensors[1].values[3] = 0;
  EXPECT_THAT(ParseError(fields).message(), AllOf(HasSubstr("layers[0].k.scale"), HasSubstr("above 0")));
}

TEST(ProfileFile, WritingRefusesWhatReadingWould) {
  const auto refused = [](auto change) {
    Profile profile = SmallProfile();
    change(&profile);
    const Result<std::string> bytes = SerializeProfile(profile);
    return bytes ? "written" : bytes.error().message();
  };
  EXPECT_THAT(refused([](Profile* p) { p->layers.clear(); }), HasSubstr("'layers'"));
  EXPECT_THAT(refused([](Profile* p) { p->layers[1].k.mean[0] = std::numeric_limits<float>::infinity(); }),
              HasSubstr("layers[1].k.mean"));
  EXPECT_THAT(refused([](Profile* p) { p->layers[0].query_square.pop_back(); }), HasSubstr("15 values"));
  EXPECT_THAT(refused([](Profile* p) { p->layers[0].shape.heads = 3; }), HasSubstr("3 heads"));
  EXPECT_THAT(refused([](Profile* p) { p->byte_budget_table[0].k_bits[1] = 9; }),
              HasSubstr("byte_budget_table[0].k_bits"));
  EXPECT_THAT(refused([](Profile* p) { p->byte_budget_table[1].bits = 2.5; }), HasSubstr("byte_budget_table[1].bits"));
  EXPECT_THAT(refused([](Profile* p) { p->byte_budget_table[1].measured_kl = -1; }), HasSubstr("measured_kl"));
  EXPECT_THAT(refused([](Profile* p) { p->sensitivities[0].layer = 2; }), HasSubstr("sensitivities[0].layer"));
  EXPECT_THAT(refused([](Profile* p) { p->model_name = "\xff"; }), HasSubstr("UTF-8"));
  EXPECT_THAT(refused([](Profile* p) { p->metadata["a"] = "\xc3"; }), HasSubstr("UTF-8"));
}

TEST(ProfileFile, SavesAtomicallyAndReplaces) {
  const Folder folder;
  const std::string path = folder.File("p.tkv");
  Profile profile = SmallProfile();
  ASSERT_TRUE(SaveProfile(profile, path).ok());
  profile.tokens = 7;
  ASSERT_TRUE(SaveProfile(profile, path).ok());
  const Result<Profile> back = LoadProfile(path);
  ASSERT_TRUE(back) << back.status().ToString();
  EXPECT_EQ(back->tokens, 7);
  EXPECT_EQ(folder.count(), 1U);  // nothing temporary is left

  profile.layers.clear();  // an error leaves the old file
  EXPECT_FALSE(SaveProfile(profile, path).ok());
  EXPECT_EQ(LoadProfile(path)->tokens, 7);
  EXPECT_EQ(SaveProfile(SmallProfile(), folder.File("no/p.tkv")).code(), StatusCode::kDataLoss);
  EXPECT_EQ(SaveProfile(SmallProfile(), folder.File("")).code(), StatusCode::kInvalidArgument);
}

TEST(ProfileFile, LoadErrors) {
  const Folder folder;
  EXPECT_EQ(LoadProfile(folder.File("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LoadProfile(folder.File("")).status().code(), StatusCode::kInvalidArgument);
  std::ofstream(folder.File("empty")).flush();
  const Status status = LoadProfile(folder.File("empty")).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(folder.File("empty")));
}

}  // namespace
}  // namespace tersekv
