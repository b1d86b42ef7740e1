// SPDX-License-Identifier: Apache-2.0
#include "src/io/file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tersekv {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / fmt::format("tersekv_files_{}", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder_;
};

TEST_F(Files, ThreadsThatWriteOnePathLeaveOneWhole) {
  const std::string path = Path("one");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string bytes(200000 + static_cast<size_t>(t), static_cast<char>('a' + t));
      for (int i = 0; i < 20; ++i) {
        const Status status = WriteFileAtomically(path, bytes, "file");
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
    });
  }
  for (int i = 0; i < 40; ++i) {
    if (!fs::exists(path)) continue;
    const Result<std::string> bytes = ReadFile(path, "file", 1 << 20);
    ASSERT_TRUE(bytes);
    ASSERT_EQ(*bytes, std::string(bytes->size(), bytes->front()));
    ASSERT_EQ(bytes->size(), 200000u + static_cast<size_t>(bytes->front() - 'a'));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Names(), testing::ElementsAre("one"));
}

TEST_F(Files, NamesThatAKilledProcessLeftAreNotTaken) {
  for (int i = 0; i < 300; ++i) std::ofstream(Path(fmt::format("a.tmp{}-{}", ::getpid(), i))) << "left";
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new", "file").ok());
  EXPECT_EQ(ReadFile(Path("a"), "file", 10).value(), "new");
  EXPECT_EQ(Names().size(), 301u);
}

// A folder that may be written and entered, not listed: another user, as root may do everything.
TEST_F(Files, FoldersThatMayNotBeRead) {
  const std::string closed = Path("closed"), shut = Path("shut");
  for (const std::string& path : {closed, shut}) fs::create_directory(path);
  const bool root = ::geteuid() == 0;
  constexpr uid_t kNobody = 65534;
  if (root) {
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    ASSERT_EQ(::chown(closed.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(::chown(shut.c_str(), kNobody, kNobody), 0);
  }
  ASSERT_EQ(::chmod(closed.c_str(), 0300), 0);
  ASSERT_EQ(::chmod(shut.c_str(), 0500), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (root && ::seteuid(kNobody) != 0) ::_exit(9);
    const Status status = WriteFileAtomically(closed + "/a", "bytes", "file");
    if (!status.ok()) ::_exit(1);
    const Status refused = WriteFileAtomically(shut + "/a", "bytes", "file");
    ::_exit(refused.code() == StatusCode::kDataLoss ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  ASSERT_EQ(::chmod(closed.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(shut.c_str(), 0700), 0);
  EXPECT_EQ(ReadFile(closed + "/a", "file", 10).value(), "bytes");
  EXPECT_EQ(fs::directory_iterator(shut), fs::directory_iterator());
}

TEST_F(Files, WhatCannotBeWrittenIsSaid) {
  EXPECT_EQ(WriteFileAtomically(folder_.string(), "x", "file").code(), StatusCode::kInvalidArgument);
  const Status status = WriteFileAtomically(Path("none/a"), "x", "file");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("none/a"));
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace tersekv
