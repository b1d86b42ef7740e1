// SPDX-License-Identifier: Apache-2.0
// Models for the host's tests: the demo model of scripts/setup.sh, and files that tests/tools/make_model.py makes once
// and keeps in the cache folder under models/test/. TERSEKV_TEST_PYTHON and TERSEKV_TEST_MODEL name others.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace tersekv::llama {

inline std::string EnvironmentOr(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// As in scripts/lib.sh.
inline std::string CacheFolder() {
  const std::string home = EnvironmentOr("HOME", "/tmp");
  return EnvironmentOr("TERSEKV_CACHE_DIR", EnvironmentOr("XDG_CACHE_HOME", home + "/.cache") + "/tersekv");
}

inline std::string TestPython() {
  return EnvironmentOr("TERSEKV_TEST_PYTHON", CacheFolder() + "/venv-gguf-" TERSEKV_TEST_GGUF_VERSION "/bin/python");
}

inline std::string DemoModel() {
  return EnvironmentOr("TERSEKV_TEST_MODEL", CacheFolder() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

inline std::string TestModelPath(const std::string& name) { return CacheFolder() + "/models/test/" + name; }

// Runs a shell command; its output goes into the failure message. Test programs that run at once take turns.
inline bool RunCommand(const std::string& command) {
  std::filesystem::create_directories(CacheFolder() + "/models/test");
  const int lock = open(TestModelPath(".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock >= 0) flock(lock, LOCK_EX);
  const std::string log = TestModelPath(fmt::format(".log.{}", getpid()));
  const int code = std::system(fmt::format("{} >'{}' 2>&1", command, log).c_str());
  std::stringstream said;
  said << std::ifstream(log).rdbuf();
  std::filesystem::remove(log);
  if (lock >= 0) close(lock);
  if (code != 0) ADD_FAILURE() << command << "\nended with code " << code << ": " << said.str();
  return code == 0;
}

// Path of a model made by `make_model.py <arguments> --out models/test/<name>`; on failure the test fails.
inline std::string MakeModel(const std::string& name, const std::string& arguments) {
  const std::string out = TestModelPath(name);
  RunCommand(fmt::format("'{}' '{}/tests/tools/make_model.py' {} --out '{}'", TestPython(), TERSEKV_TEST_SOURCE_DIR,
                         arguments, out));
  return out;
}

// Random f32 weights; arguments beyond the shape are make_model.py's own.
inline std::string RandomModel(const std::string& arch, int heads, int kv_heads, int head_dim,
                               const std::string& more) {
  std::string name = fmt::format("{}-h{}-kv{}-d{}{}.gguf", arch, heads, kv_heads, head_dim, more);
  std::erase_if(name, [](char c) { return c == ' '; });
  return MakeModel(name, fmt::format("random --arch {} --heads {} --kv-heads {} --head-dim {} {}", arch, heads,
                                     kv_heads, head_dim, more));
}

inline std::string SmallLlama() { return RandomModel("llama", 8, 2, 64, "--embd 256"); }

// The demo model with every weight as f32 (540 MB).
inline std::string F32DemoModel() {
  return MakeModel("SmolLM2-135M-Instruct.f32.gguf", fmt::format("f32 --in '{}'", DemoModel()));
}

// The same with a pair of channels that RoPE does not turn, and keys offset by `norm` on it (0: none).
inline std::string HardKeyModel(int norm) {
  return MakeModel(fmt::format("SmolLM2-135M-Instruct.hard-keys-{}.gguf", norm),
                   fmt::format("hard-keys --norm {} --in '{}'", norm, DemoModel()));
}

// Tests that make models; skipped where the helper's Python is not installed.
class MadeModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(TestPython())) {
      GTEST_SKIP() << "no Python with the gguf package at " << TestPython()
                   << ": run scripts/setup.sh, or set TERSEKV_TEST_PYTHON";
    }
  }
};

// Tests on the demo model.
class DemoModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(DemoModel())) {
      GTEST_SKIP() << "no demo model at " << DemoModel() << ": run scripts/setup.sh, or set TERSEKV_TEST_MODEL";
    }
  }
};

// Tests on models that are made from the demo model.
class MadeDemoModelTest : public DemoModelTest {
 protected:
  void SetUp() override {
    DemoModelTest::SetUp();
    if (!IsSkipped() && !std::filesystem::exists(TestPython())) {
      GTEST_SKIP() << "no Python with the gguf package at " << TestPython()
                   << ": run scripts/setup.sh, or set TERSEKV_TEST_PYTHON";
    }
  }
};

}  // namespace tersekv::llama
