// SPDX-License-Identifier: Apache-2.0
// ListCodecs: rows of src/codec/list.h as the public header shows them.
#include "src/codec/list.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "tersekv/codec.h"
#include "tersekv/spec.h"

namespace tersekv {
namespace {

CodecInfo Info(const FamilyRow& row, float k_bits, float v_bits, int group, std::string description) {
  return {.spec = FormatSpec(DefaultsOf(row.family, k_bits, row.family, v_bits, group)),
          .bits = (static_cast<double>(k_bits) + static_cast<double>(v_bits)) / 2,
          .description = std::move(description),
          .cost = row.cost,
          .integer_kernels = row.storage == Storage::kCodes};
}

}  // namespace

std::vector<CodecInfo> ListCodecs() {
  std::vector<CodecInfo> codecs;
  for (const FamilyRow& row : kFamilies) {
    if (row.family == Family::kAuto) continue;  // stands for one of the others
    if (row.form == SpecForm::kKivi) {
      for (const PresetRow& p : kPresets) {
        codecs.push_back(
            Info(row, p.k_bits, p.v_bits, p.group, fmt::format("{} (preset {})", row.description, p.name)));
      }
      continue;
    }
    for (int i = 0; i < row.widths.count(); ++i) {
      codecs.push_back(Info(row, row.widths.at(i), row.widths.at(i), 0, std::string(row.description)));
    }
  }
  return codecs;
}

}  // namespace tersekv
