// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/eval.h"

namespace tersekv::cli {

std::vector<int32_t> EvalPlan::Context(int c) const {
  std::vector<int32_t> tokens = bos;
  const int64_t own = length - static_cast<int64_t>(bos.size());
  tokens.insert(tokens.end(), text.begin() + c * own, text.begin() + (c + 1) * own);
  return tokens;
}

int32_t EvalPlan::Next(int c, int64_t pos) const {
  const int64_t own = length - static_cast<int64_t>(bos.size());
  return text[static_cast<size_t>(c * own + pos + 1 - static_cast<int64_t>(bos.size()))];
}

std::vector<int32_t> EvalPlan::Continuation(int c, int n) const {
  const int64_t own = length - static_cast<int64_t>(bos.size());
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(text[static_cast<size_t>((c + 1) * own + i) % text.size()]);
  return tokens;
}

Result<EvalPlan> MakePlan(std::vector<int32_t> text, std::vector<int32_t> bos, int64_t length, int64_t tokens) {
  EvalPlan plan;
  plan.length = length;
  plan.first_scored = length / 2;
  plan.bos = std::move(bos);
  const int64_t own = length - static_cast<int64_t>(plan.bos.size());
  const auto available = static_cast<int64_t>(text.size());
  // One more than the context: the last position predicts it.
  const int64_t most = (available - 1) / own;
  if (available < own + 1) {
    const int64_t fits = available - 1 + static_cast<int64_t>(plan.bos.size());
    return InvalidArgument(fmt::format("the text has {} tokens, one context of {} needs {}: give a longer text{}",
                                       available, length, own + 1,
                                       fits >= kLeastContext ? fmt::format(" or --ctx {} or less", fits) : ""));
  }
  const int64_t scored = length - plan.first_scored;
  plan.contexts = static_cast<int>(std::min(most, (tokens + scored - 1) / scored));
  plan.text = std::move(text);
  return plan;
}

}  // namespace tersekv::cli
