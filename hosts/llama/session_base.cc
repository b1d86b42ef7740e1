// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/session_base.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "src/base/check.h"

namespace tersekv::llama {

llama_batch& Batch::Fill(std::span<const BatchToken> tokens) {
  batch_.n_tokens = static_cast<int32_t>(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch_.token[i] = tokens[i].token;
    batch_.pos[i] = tokens[i].pos;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = tokens[i].seq;
    batch_.logits[i] = tokens[i].logits ? 1 : 0;
  }
  return batch_;
}

size_t LatentsKeptTwice(const Model& model, const CacheConfig& config) {
  size_t values = 0;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerShape& shape = config.layers[l];
    if (model.layers.latent[l] && !shape.latent)
      values += static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim_v);
  }
  return values;
}

SessionBase::SessionBase(std::shared_ptr<const Model> model, const SessionOptions& options, std::string kv)
    : model_(std::move(model)), options_(options), kv_(std::move(kv)), batch_(options.ubatch) {}

Status SessionBase::CheckBatch(std::span<const BatchToken> batch) const {
  if (batch.empty()) return InvalidArgument("the batch is empty: give at least one token");
  std::map<int32_t, int64_t> lengths;
  for (const BatchToken& t : batch) {
    if (t.token < 0 || t.token >= model_->info.vocab) {
      return InvalidArgument(fmt::format("token {} is not in the vocabulary of {}", t.token, model_->info.vocab));
    }
    if (t.seq < 0 || t.seq >= options_.max_sequences) {
      return InvalidArgument(fmt::format("sequence {} of {}: open the session with a larger max_sequences", t.seq,
                                         options_.max_sequences));
    }
    const auto [it, fresh] = lengths.emplace(t.seq, Length(t.seq));
    if (++it->second > options_.ctx) {
      return OutOfBudget(
          fmt::format("sequence {} holds {} tokens and the context is {}: open the session with a larger "
                      "ctx, or truncate",
                      t.seq, Length(t.seq), options_.ctx));
    }
  }
  return {};
}

size_t SessionBase::PassLength(std::span<const BatchToken> batch) const {
  return std::min(batch.size(), static_cast<size_t>(options_.ubatch));
}

Status SessionBase::Decode(std::span<const BatchToken> batch) {
  TERSEKV_RETURN_IF_ERROR(CheckBatch(batch));
  draft_tokens_ = 0;
  std::map<int32_t, int64_t> before;
  for (const BatchToken& t : batch) before.emplace(t.seq, Length(t.seq));
  const size_t vocab = static_cast<size_t>(model_->info.vocab);
  single_pass_ = PassLength(batch) == batch.size();
  pass_rows_.clear();
  kept_logits_.clear();
  for (size_t first = 0; first < batch.size();) {
    const auto part = batch.subspan(first, PassLength(batch.subspan(first)));
    first += part.size();
    if (const Status s = RunPass(part); !s.ok()) {
      for (const auto& [seq, length] : before) {
        if (const Status undo = TakeBack(seq, length); !undo.ok()) return undo;
      }
      return s;
    }
    for (size_t i = 0; i < part.size(); ++i) {
      if (!part[i].logits) continue;
      pass_rows_.push_back(static_cast<int>(i));
      if (single_pass_) continue;
      const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
      kept_logits_.insert(kept_logits_.end(), logits, logits + vocab);
    }
  }
  return {};
}

Status SessionBase::DecodeDraft(std::span<const BatchToken> draft) {
  TERSEKV_RETURN_IF_ERROR(CheckBatch(draft));
  draft_tokens_ = 0;
  if (model_->info.recurrent) {
    return Unsupported(
        "a model with recurrent layers takes no drafts: their state cannot go back to an accepted token");
  }
  if (draft.size() > static_cast<size_t>(options_.ubatch)) {
    return InvalidArgument(
        fmt::format("a draft of {} tokens: a forward pass takes {}, open the session with a larger "
                    "ubatch",
                    draft.size(), options_.ubatch));
  }
  single_pass_ = true;
  pass_rows_.clear();
  for (size_t i = 0; i < draft.size(); ++i) {
    if (draft[i].seq != draft[0].seq) return InvalidArgument("a draft is of one sequence: give tokens of one");
    if (draft[i].logits) pass_rows_.push_back(static_cast<int>(i));
  }
  TERSEKV_RETURN_IF_ERROR(RunDraft(draft));
  draft_seq_ = draft[0].seq;
  draft_begin_ = Length(draft_seq_);
  draft_tokens_ = static_cast<int64_t>(draft.size());
  return {};
}

Status SessionBase::AcceptDraft(int64_t tokens) {
  const int64_t drafted = std::exchange(draft_tokens_, 0);
  if (tokens == 0) return KeepDraft(0);
  if (tokens < 0 || tokens > drafted || Length(draft_seq_) != draft_begin_) {
    return InvalidArgument(
        fmt::format("{} tokens of a draft are to be accepted, and there are {}: accept right after DecodeDraft", tokens,
                    Length(draft_seq_) != draft_begin_ ? 0 : drafted));
  }
  return KeepDraft(tokens);
}

std::span<const float> SessionBase::Logits(int i) const {
  TERSEKV_CHECK(i >= 0 && static_cast<size_t>(i) < pass_rows_.size());
  const size_t vocab = static_cast<size_t>(model_->info.vocab);
  if (!single_pass_) return {kept_logits_.data() + static_cast<size_t>(i) * vocab, vocab};
  return {llama_get_logits_ith(context_.get(), pass_rows_[static_cast<size_t>(i)]), vocab};
}

Status SessionBase::Prefill(std::span<const int32_t> tokens, int32_t seq,
                            const std::function<void(size_t, size_t)>& progress) {
  if (tokens.empty()) return InvalidArgument("the prompt is empty: give at least one token");
  const int64_t begin = Length(seq);
  if (begin + static_cast<int64_t>(tokens.size()) > options_.ctx) {
    return OutOfBudget(
        fmt::format("the prompt of {} tokens does not fit: {} of the context's {} are taken; shorten it or "
                    "raise the context",
                    tokens.size(), begin, options_.ctx));
  }
  const size_t pass = static_cast<size_t>(options_.ubatch);
  std::vector<BatchToken> part;
  for (size_t first = 0; first < tokens.size(); first += pass) {
    const size_t end = std::min(tokens.size(), first + pass);
    part.clear();
    for (size_t i = first; i < end; ++i) {
      part.push_back({tokens[i], static_cast<int32_t>(begin + static_cast<int64_t>(i)), seq, i + 1 == tokens.size()});
    }
    if (const Status s = Decode(part); !s.ok()) {
      if (const Status undo = Truncate(seq, begin); !undo.ok()) return undo;
      return s;
    }
    if (progress) progress(end, tokens.size());
  }
  return {};
}

}  // namespace tersekv::llama
