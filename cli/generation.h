// SPDX-License-Identifier: Apache-2.0
// Runs a model token by token, or several at once where a draft foresaw them: the tokens are the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/prompt_lookup.h"
#include "tersekv/llama.h"

namespace tersekv::cli {

class Generation {
 public:
  // The prompt is the history of sequence 0, and its last logits are there. drafts: most tokens of a draft, 0 for none;
  // at most ctx tokens become history.
  Generation(llama::Session* session, std::span<const int32_t> prompt, int drafts, int64_t ctx);

  std::span<const float> Logits() const { return session_->Logits(static_cast<int>(row_)); }  // of the next token
  int64_t length() const { return session_->Length(0) + (draft_.empty() ? 0 : Accepted()); }
  // The token that was sampled from Logits(), with at most `more` to come after it.
  Status Take(int32_t token, int64_t more);
  // What was accepted becomes history; at the end.
  Status Finish();

  int64_t passes() const { return passes_; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  int64_t Accepted() const { return static_cast<int64_t>(row_) + 1; }

  llama::Session* session_;
  PromptLookup lookup_;
  int drafts_;
  int64_t ctx_;
  std::vector<int32_t> draft_;  // behind the token that was taken; empty: nothing is pending
  size_t row_ = 0;              // tokens of it that were accepted
  int64_t passes_ = 0, drafted_ = 0, accepted_ = 0;
};

}  // namespace tersekv::cli
