// SPDX-License-Identifier: Apache-2.0
// safetensors with fp32 tensors and a checksum: u64 LE header length, JSON header, data (docs/formats.md). Readable by
// any safetensors reader; reading here takes only what was written here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/status.h"

namespace tersekv {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // product of shape
};

struct SafeTensors {
  std::map<std::string, std::string> metadata;  // without the checksum, which comes and goes by itself
  std::vector<NamedTensor> tensors;             // distinct names, in the order of their data
};

// Texts must be UTF-8 (IsUtf8).
std::string WriteSafeTensors(const SafeTensors& file);
// kDataLoss for anything else than the bytes of WriteSafeTensors. `name` stands in messages.
Result<SafeTensors> ReadSafeTensors(std::string_view bytes, const std::string& name);

bool IsUtf8(std::string_view text);

}  // namespace tersekv
