// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/simd.h"

#include <cstdlib>
#include <mutex>

#include "hwy/highway.h"
#include "tersekv/codec.h"

namespace tersekv {
namespace {

// Targets this file was compiled for and this machine has, best first (a lower bit is a better target).
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  for (int bit = 0; bit < 63; ++bit) {
    if (supported & (int64_t{1} << bit)) targets.push_back(int64_t{1} << bit);
  }
  return targets;
}

}  // namespace

std::vector<std::string> SimdTargets() {
  ChooseSimdTarget();
  std::vector<std::string> names;
  for (const int64_t target : Targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void ForceSimdTarget(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  if (name.empty()) return;
  for (const int64_t target : Targets()) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().DeInit();
      return;
    }
  }
}

void ChooseSimdTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* forced = std::getenv("TERSEKV_FORCE_ISA"); forced != nullptr) ForceSimdTarget(forced);
  });
}

}  // namespace tersekv
