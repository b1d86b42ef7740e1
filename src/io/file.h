// SPDX-License-Identifier: Apache-2.0
// Whole files: read with a limit, written atomically.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "tersekv/status.h"

namespace tersekv {

// what: "profile", for messages. kNotFound, kInvalidArgument (a folder), kDataLoss (larger than limit, unreadable).
Result<std::string> ReadFile(const std::string& path, const std::string& what, size_t limit);

// The bytes of a file, mapped: read as they are needed.
class MappedFile {
 public:
  MappedFile(const void* data, size_t size) : data_(data), size_(size) {}
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  const void* data_;
  size_t size_;
};
// As ReadFile, without a limit. Another process that cuts the file short meanwhile stops this one; one that replaces it
// (WriteFileAtomically) does not.
Result<std::shared_ptr<const MappedFile>> MapFile(const std::string& path, const std::string& what);

// A temporary file in the same folder, fsync, rename, fsync of the folder: after a crash there is the old file or the
// new one, whole. Also when several write to one path at once, and in a folder that may not be read.
Status WriteFileAtomically(const std::string& path, std::string_view bytes, const std::string& what);

}  // namespace tersekv
