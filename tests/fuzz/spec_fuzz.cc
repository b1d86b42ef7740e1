// SPDX-License-Identifier: Apache-2.0
// Specs: the input as a text, as a list, and as the members of a KvSpec.
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "src/codec/spec_rules.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"
#include "tests/fuzz/fuzz.h"

namespace tersekv::fuzz {
namespace {

void CheckRoundTrip(const KvSpec& spec) {
  const std::string text = FormatSpec(spec);
  const Result<KvSpec> back = ParseSpec(text);
  TERSEKV_CHECK(back && *back == spec);
  TERSEKV_CHECK(FormatSpec(*back) == text);
  if (CheckSupported(spec).ok()) TERSEKV_CHECK(std::isfinite(BitsSpec(spec, 64, 128)) && BitsSpec(spec, 64, 128) > 0);
}

void CheckError(const Status& status) {
  TERSEKV_CHECK(status.code() == StatusCode::kInvalidArgument && !status.message().empty());
}

KvSpec FromMembers(Input* in) {
  const auto word = [in](int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | in->Byte();
    return value;
  };
  const auto side = [&] {
    SideSpec s;
    s.family = static_cast<Family>(in->Byte() % 20);  // some are no family
    s.bits = static_cast<float>(in->Byte()) / 2;
    s.norm = static_cast<NormMode>(in->Byte() % 5);
    return s;
  };
  KvSpec spec;
  spec.k = side();
  spec.v = in->Byte() & 1 ? side() : spec.k;
  spec.rotation = static_cast<Rotation>(in->Byte() % 5);
  spec.mean = static_cast<MeanMode>(in->Byte() % 5);
  spec.scale = in->Byte() & 1;
  spec.page = in->Byte() & 1 ? 64 : static_cast<int>(in->Byte());
  spec.sink = static_cast<int32_t>(word(2)) - 16;
  spec.win = static_cast<int32_t>(word(3)) - 16;
  spec.group = static_cast<int32_t>(word(2)) - 16;
  spec.seed = word(8);
  return spec;
}

}  // namespace

void FuzzSpec(std::span<const uint8_t> data) {
  const std::string text(data.begin(), data.end());
  if (const Result<KvSpec> spec = ParseSpec(text)) {
    CheckRoundTrip(*spec);
  } else {
    CheckError(spec.error());
  }
  if (const Result<std::vector<KvSpec>> list = ParseSpecList(text)) {
    std::string canonical;
    for (const KvSpec& spec : *list) {
      CheckRoundTrip(spec);
      canonical += (canonical.empty() ? "" : ",") + FormatSpec(spec);
    }
    const Result<std::vector<KvSpec>> back = ParseSpecList(canonical);
    TERSEKV_CHECK(back && *back == *list);
  } else {
    CheckError(list.error());
  }
  Input in(data);
  const KvSpec spec = FromMembers(&in);
  if (const Status valid = ValidateSpec(spec); valid.ok()) {
    CheckRoundTrip(spec);
  } else {
    CheckError(valid);
  }
}

}  // namespace tersekv::fuzz
