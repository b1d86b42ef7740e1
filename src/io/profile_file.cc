// SPDX-License-Identifier: Apache-2.0
// Profiles as bytes and files.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "src/base/check.h"
#include "src/io/file.h"
#include "src/io/profile_fields.h"
#include "src/io/safetensors.h"
#include "tersekv/profile.h"

namespace tersekv {
namespace {

constexpr size_t kMostBytes = size_t{1} << 28;  // 100 times what a model of 100 layers takes

}  // namespace

Result<std::string> SerializeProfile(const Profile& profile) {
  TERSEKV_RETURN_IF_ERROR(ValidateProfile(profile));
  const SafeTensors file = FieldsOfProfile(profile);
  for (const auto& [key, text] : file.metadata) {
    if (!IsUtf8(text)) return InvalidArgument(fmt::format("profile: field '{}' is not UTF-8", key));
  }
  for (const auto& [key, text] : profile.metadata) {
    if (!IsUtf8(key) || !IsUtf8(text)) return InvalidArgument("profile: a text of field 'metadata' is not UTF-8");
  }
  return WriteSafeTensors(file);
}

Result<Profile> ParseProfile(std::string_view bytes, const std::string& name) {
  const Result<SafeTensors> file = ReadSafeTensors(bytes, name);
  if (!file) return file.error();
  Result<Profile> profile = ProfileOfFields(*file, name);
  if (!profile) return profile;
  if (const Status s = ValidateProfile(*profile); !s.ok()) {
    return DataLoss(fmt::format("'{}': {}", name, s.message()));
  }
  // JSON says the same in many ways: fields twice, spaces, other digits. One of them is a profile.
  if (const Result<std::string> written = SerializeProfile(*profile); !written || *written != bytes) {
    return DataLoss(fmt::format("'{}' holds a profile in other bytes than it is written in: make it again", name));
  }
  return profile;
}

Status SaveProfile(const Profile& profile, const std::string& path) {
  const Result<std::string> bytes = SerializeProfile(profile);
  return bytes ? WriteFileAtomically(path, *bytes, "profile") : bytes.error();
}

Result<Profile> LoadProfile(const std::string& path) {
  const Result<std::string> bytes = ReadFile(path, "profile", kMostBytes);
  return bytes ? ParseProfile(*bytes, path) : Result<Profile>(bytes.error());
}

}  // namespace tersekv
