// SPDX-License-Identifier: Apache-2.0
// A profile as the metadata and tensors of a safetensors file, and back.
#pragma once

#include <string>

#include "src/io/safetensors.h"
#include "tersekv/profile.h"
#include "tersekv/status.h"

namespace tersekv {

inline constexpr int kProfileVersion = 1;  // of the format; rises with every change of it

SafeTensors FieldsOfProfile(const Profile& profile);
// Fields that are missing, of another type or unknown are errors that name them. Values are for ValidateProfile.
Result<Profile> ProfileOfFields(const SafeTensors& file, const std::string& name);

}  // namespace tersekv
