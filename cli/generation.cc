// SPDX-License-Identifier: Apache-2.0
#include "cli/generation.h"

#include <algorithm>

namespace tersekv::cli {

Generation::Generation(llama::Session* session, std::span<const int32_t> prompt, int drafts, int64_t ctx)
    : session_(session), drafts_(drafts), ctx_(ctx) {
  if (drafts_ == 0) return;
  for (const int32_t token : prompt) lookup_.Add(token);
}

Status Generation::Take(int32_t token, int64_t more) {
  if (drafts_ > 0) lookup_.Add(token);
  if (row_ < draft_.size() && draft_[row_] == token) {
    ++row_;
    ++accepted_;
    return {};
  }
  if (Status s = Finish(); !s.ok()) return s;
  const int64_t length = session_->Length(0);
  std::vector<llama::BatchToken> batch = {{token, static_cast<int32_t>(length), 0, true}};
  if (drafts_ > 0) draft_ = lookup_.Draft(static_cast<int>(std::min({int64_t{drafts_}, more - 1, ctx_ - length - 1})));
  for (const int32_t next : draft_) {
    batch.push_back({next, static_cast<int32_t>(length + static_cast<int64_t>(batch.size())), 0, true});
  }
  ++passes_;
  if (draft_.empty()) return session_->Decode(batch);
  drafted_ += static_cast<int64_t>(draft_.size());
  const Status status = session_->DecodeDraft(batch);
  if (!status.ok()) draft_.clear();
  return status;
}

Status Generation::Finish() {
  if (draft_.empty()) return {};
  const int64_t accepted = Accepted();
  draft_.clear();
  row_ = 0;
  return session_->AcceptDraft(accepted);
}

}  // namespace tersekv::cli
