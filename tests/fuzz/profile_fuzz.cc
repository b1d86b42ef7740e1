// SPDX-License-Identifier: Apache-2.0
// Profiles: any bytes as a file. What is accepted writes itself again. profile_mutator.cc keeps most inputs whole.
#include <string>
#include <string_view>

#include "tersekv/profile.h"
#include "tests/fuzz/fuzz.h"

namespace tersekv::fuzz {

void FuzzProfile(std::span<const uint8_t> data) {
  const std::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
  Result<Profile> profile = ParseProfile(bytes, "input");
  if (!profile) {
    const StatusCode code = profile.error().code();
    TERSEKV_CHECK(code == StatusCode::kDataLoss || code == StatusCode::kUnsupported);
    TERSEKV_CHECK(profile.error().message().find("'input'") != std::string::npos);
    return;
  }
  TERSEKV_CHECK(ValidateProfile(*profile).ok());
  const Result<std::string> again = SerializeProfile(*profile);
  TERSEKV_CHECK(again && *again == bytes);
  Profile turned = *profile;
  for (const ChannelOrder order : {ChannelOrder::kHalf, ChannelOrder::kInterleaved, profile->channel_order}) {
    ConvertChannelOrder(order, &turned);
  }
  TERSEKV_CHECK(turned == *profile);
  for (const BudgetEntry& entry : profile->byte_budget_table) TERSEKV_CHECK(FindBudget(*profile, entry.bits));
}

}  // namespace tersekv::fuzz
