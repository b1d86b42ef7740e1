// SPDX-License-Identifier: Apache-2.0
// File helpers of options.h.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/options.h"

namespace tersekv::cli {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Devices and pipes are written in place: a rename would replace them.
bool WrittenInPlace(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) && !fs::is_regular_file(path, ignored);
}

bool WriteAll(std::FILE* file, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
}

}  // namespace

Result<std::string> ReadText(const std::string& path, const std::string& what) {
  std::unique_ptr<std::FILE, CloseFile> owned;
  std::FILE* file = stdin;
  if (path != "-") {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      return InvalidArgument(fmt::format("{} '{}' is a folder: name a file in it", what, path));
    }
    owned.reset(file = std::fopen(path.c_str(), "rb"));
    if (file == nullptr) {
      return NotFound(fmt::format("{} '{}' cannot be read: {}; check the path", what, path, std::strerror(errno)));
    }
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
  if (std::ferror(file)) {
    return DataLoss(fmt::format("{} '{}' cannot be read whole: {}", what, path, std::strerror(errno)));
  }
  return text;
}

Status CheckWritable(const std::string& path) {
  if (path.empty() || path == "-") return {};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return InvalidArgument(fmt::format("'{}' is a folder: name a file to write", path));
  }
  const std::string parent = ParentOf(path);
  if (!fs::is_directory(parent, ignored)) {
    return NotFound(fmt::format("'{}' cannot be written: there is no folder '{}'; make it first", path, parent));
  }
  const bool in_place = WrittenInPlace(path);
  if (::access(in_place ? path.c_str() : parent.c_str(), W_OK) != 0) {
    return InvalidArgument(fmt::format("'{}' cannot be written: {}; choose another path", path, std::strerror(errno)));
  }
  return {};
}

std::string HashOf(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

Status WriteText(const std::string& path, std::string_view text) {
  if (path == "-") {
    return WriteAll(stdout, text)
               ? Status()
               : DataLoss(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
  const bool in_place = WrittenInPlace(path);
  const std::string target = in_place ? path : fmt::format("{}.tmp{}", path, ::getpid());
  const auto fail = [&] {
    const std::string reason = std::strerror(errno);
    if (!in_place) std::remove(target.c_str());
    return DataLoss(fmt::format("'{}' cannot be written: {}; choose another path", path, reason));
  };
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(target.c_str(), "wb"));
  if (!file) return fail();
  if (!WriteAll(file.get(), text)) return fail();
  if (std::fclose(file.release()) != 0) return fail();
  if (!in_place && std::rename(target.c_str(), path.c_str()) != 0) return fail();
  return {};
}

}  // namespace tersekv::cli
