// SPDX-License-Identifier: Apache-2.0
// What sessions on our cache and on the engine's own have in common.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hosts/llama/context_params.h"
#include "hosts/llama/model.h"
#include "hosts/llama/text.h"

namespace tersekv::llama {

// A batch of at most one forward pass, as the engine wants it.
class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  llama_batch& Fill(std::span<const BatchToken> tokens);

 private:
  llama_batch batch_;
};

class SessionBase : public Session {
 public:
  SessionBase(std::shared_ptr<const Model> model, const SessionOptions& options, std::string kv);

  Result<std::vector<int32_t>> Tokenize(std::string_view text, bool add_special, bool parse_special) const override {
    return TokenizeText(*model_, text, add_special, parse_special);
  }
  std::string Piece(int32_t token) const override { return PieceOf(*model_, token); }
  bool IsEndOfGeneration(int32_t token) const override { return llama_vocab_is_eog(model_->vocab(), token); }
  Result<std::string> ApplyChatTemplate(std::span<const ChatMessage> messages) const override {
    return ChatPrompt(*model_, messages);
  }
  Status Decode(std::span<const BatchToken> batch) override;
  Status DecodeDraft(std::span<const BatchToken> draft) override;
  Status AcceptDraft(int64_t tokens) override;
  Status Prefill(std::span<const int32_t> tokens, int32_t seq,
                 const std::function<void(size_t, size_t)>& progress) override;
  std::span<const float> Logits(int i) const override;

  const ModelInfo& model() const override { return model_->info; }
  const std::string& kv() const override { return kv_; }
  int threads() const override { return options_.threads; }

 protected:
  // One llama_decode of at most `ubatch` tokens; the history follows or stays as it is.
  virtual Status RunPass(std::span<const BatchToken> tokens) = 0;
  // How many tokens from the first on one pass takes.
  virtual size_t PassLength(std::span<const BatchToken> batch) const;
  // The same for a draft: the history stays as it is. Then the first tokens of the draft become history.
  virtual Status RunDraft(std::span<const BatchToken> tokens) = 0;
  virtual Status KeepDraft(int64_t tokens) = 0;
  // After a failed batch.
  virtual Status TakeBack(int32_t seq, int64_t tokens) { return Truncate(seq, tokens); }
  Status CheckBatch(std::span<const BatchToken> batch) const;

  std::shared_ptr<const Model> model_;
  SessionOptions options_;  // with 0s resolved
  std::string kv_;
  ContextPtr context_;
  Batch batch_;

 private:
  std::vector<float> kept_logits_;  // of a batch that took several passes
  std::vector<int> pass_rows_;      // of one that took a single pass: row in the engine's batch
  bool single_pass_ = true;
  int32_t draft_seq_ = 0;  // of the draft that can be accepted
  int64_t draft_tokens_ = 0, draft_begin_ = 0;
};

// Values a token that MLA layers of a cache have as K and as V.
size_t LatentsKeptTwice(const Model& model, const CacheConfig& config);

Result<std::unique_ptr<Session>> OpenStock(std::shared_ptr<const Model> model, const SessionOptions& options);

}  // namespace tersekv::llama
