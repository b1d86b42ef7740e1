// SPDX-License-Identifier: Apache-2.0
// Every input of the corpora, and its beginnings: what fuzzing found once stays found in builds without clang.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace tersekv::fuzz {
namespace {

void RunCorpus(const std::string& target, void (*function)(std::span<const uint8_t>)) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TERSEKV_FUZZ_CORPUS "/" + target)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  function({});
  for (const std::filesystem::path& path : files) {
    SCOPED_TRACE(path.filename().string());
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> read((std::istreambuf_iterator<char>(in)), {});
    const std::vector<uint8_t> bytes(read.begin(), read.end());
    function(bytes);
    function(std::span(bytes).first(bytes.size() / 2));
  }
}

TEST(Corpus, Codec) { RunCorpus("codec", FuzzCodec); }
TEST(Corpus, Spec) { RunCorpus("spec", FuzzSpec); }
TEST(Corpus, Profile) { RunCorpus("profile", FuzzProfile); }
TEST(Corpus, Cache) { RunCorpus("cache", FuzzCache); }
TEST(Corpus, Session) { RunCorpus("session", FuzzSession); }

}  // namespace
}  // namespace tersekv::fuzz
