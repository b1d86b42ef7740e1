// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/simd.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

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

// What TERSEKV_FORCE_ISA asked for, or "".
std::string& Chosen() {
  static std::string name;
  return name;
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
  const std::string& wanted = name.empty() ? Chosen() : name;
  for (const int64_t target : Targets()) {
    if (wanted == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().DeInit();
      return;
    }
  }
}

void ChooseSimdTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* forced = std::getenv("TERSEKV_FORCE_ISA");
    if (forced == nullptr || *forced == '\0') return;
    std::string known;
    for (const int64_t target : Targets()) {
      if (std::string_view(forced) == hwy::TargetName(target)) {
        Chosen() = forced;
        return ForceSimdTarget(forced);
      }
      known += std::string(" ") + hwy::TargetName(target);
    }
    std::fprintf(stderr, "TERSEKV_FORCE_ISA=%s is not among this machine's targets:%s; the best is used\n", forced,
                 known.c_str());
  });
}

}  // namespace tersekv
