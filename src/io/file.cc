// SPDX-License-Identifier: Apache-2.0
#include "src/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace tersekv {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// The entry of `file` in its folder. A folder that may be written and not read cannot be opened: then its whole file
// system is synced.
bool SyncFolder(const std::string& folder, int file) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES && ::syncfs(file) == 0;
  const bool ok = ::fsync(fd) == 0 || errno == EINVAL;  // some file systems cannot sync a folder
  ::close(fd);
  return ok;
}

// A new file beside `path`, which no other thread or process has open or will open.
std::FILE* OpenTemporary(const std::string& path, std::string* name) {
  static std::atomic<unsigned> count = 0;
  constexpr int kTries = 1000;  // names that a killed process of the same number has left
  for (int i = 0; i < kTries; ++i) {
    *name = fmt::format("{}.tmp{}-{}", path, ::getpid(), count++);
    std::FILE* file = std::fopen(name->c_str(), "wbx");
    if (file != nullptr || errno != EEXIST) return file;
  }
  return nullptr;
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, const std::string& what, size_t limit) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return InvalidArgument(fmt::format("{} '{}' is a folder: name a file in it", what, path));
  }
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    return NotFound(fmt::format("{} '{}' cannot be read: {}; check the path", what, path, std::strerror(errno)));
  }
  std::string bytes;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
    bytes.append(buffer, n);
    if (bytes.size() > limit) {
      return DataLoss(fmt::format("{} '{}' has more than {} bytes, the most it can have", what, path, limit));
    }
  }
  if (std::ferror(file.get())) {
    return DataLoss(fmt::format("{} '{}' cannot be read whole: {}", what, path, std::strerror(errno)));
  }
  return bytes;
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<void*>(data_), size_);
}

Result<std::shared_ptr<const MappedFile>> MapFile(const std::string& path, const std::string& what) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return InvalidArgument(fmt::format("{} '{}' is a folder: name a file in it", what, path));
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about = {};
  if (fd < 0 || ::fstat(fd, &about) != 0) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    return NotFound(fmt::format("{} '{}' cannot be read: {}; check the path", what, path, reason));
  }
  const size_t size = static_cast<size_t>(about.st_size);
  const void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : "";
  const std::string reason = std::strerror(errno);
  ::close(fd);
  if (data == MAP_FAILED) return DataLoss(fmt::format("{} '{}' cannot be mapped: {}", what, path, reason));
  return std::shared_ptr<const MappedFile>(std::make_shared<MappedFile>(data, size));
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes, const std::string& what) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return InvalidArgument(fmt::format("{} '{}' is a folder: name a file to write", what, path));
  }
  std::string temporary;
  std::unique_ptr<std::FILE, CloseFile> file(OpenTemporary(path, &temporary));
  const auto fail = [&] {
    const std::string reason = std::strerror(errno);
    if (file) std::remove(temporary.c_str());
    return DataLoss(fmt::format("{} '{}' cannot be written: {}; choose another path", what, path, reason));
  };
  if (!file) return fail();
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) return fail();
  if (std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0) return fail();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return fail();
  const std::string folder = fs::path(path).parent_path().string();
  if (!SyncFolder(folder.empty() ? "." : folder, ::fileno(file.get()))) {
    return DataLoss(
        fmt::format("{} '{}' was written, but its folder cannot be synced: {}; after a crash the old file "
                    "may be there",
                    what, path, std::strerror(errno)));
  }
  return {};
}

}  // namespace tersekv
