// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <thread>

#include "hosts/llama/cache_config.h"
#include "hosts/llama/hook.h"
#include "hosts/llama/logging.h"
#include "hosts/llama/noise.h"
#include "hosts/llama/self_test.h"
#include "hosts/llama/session_base.h"
#include "src/base/check.h"
#include "tersekv/llama.h"

namespace tersekv::llama {
namespace {

constexpr char kStockPrefix[] = "stock-";

// Asks an empty cache with each sequence's share of the budget: what it says fits can be filled. A profile's statistics
// are there once for all sequences. empty: a cache of this config.
Status CheckBudget(CacheConfig config, const KvCache& empty, const SessionOptions& options) {
  if (options.kv_bytes == 0) return {};
  const size_t sequences = static_cast<size_t>(options.max_sequences);
  const size_t common = empty.Usage().stats;  // at most kv_bytes, or there were no cache
  config.byte_budget = std::max<size_t>(common + (options.kv_bytes - common) / sequences, 1);
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
  if (!cache) return cache.error();
  const int64_t fits = (*cache)->TokensThatFit(0);
  if (fits >= options.ctx) return {};
  return OutOfBudget(
      fmt::format("a context of {} tokens takes about {} bytes as {}, the budget is {}: {} tokens fit; lower the "
                  "context, raise the budget or use fewer bits",
                  options.ctx, (FormulaBytes(config, options.ctx) - common) * sequences + common,
                  FormatSpec(config.spec), options.kv_bytes, fits));
}

class TerseSession : public SessionBase {
 public:
  TerseSession(std::shared_ptr<const Model> model, const SessionOptions& options, std::string kv,
               std::unique_ptr<KvCache> cache, HostMode mode)
      : SessionBase(std::move(model), options, std::move(kv)),
        cache_(std::move(cache)),
        hook_(cache_.get(), model_->layers, mode, options_.threads, options_.sink),
        mode_(mode) {}

  Status Start() {
    context_.reset(NewStagingContext(*model_, options_, &hook_));
    if (context_ == nullptr) return Internal(fmt::format("llama.cpp makes no context: {}", TakeEngineErrors()));
    return {};
  }

  int64_t Length(int32_t seq) const override { return cache_->Length(seq); }
  Status Truncate(int32_t seq, int64_t tokens) override {
    if (model_->info.recurrent && tokens != 0 && tokens < Length(seq)) {
      return Unsupported(
          fmt::format("sequence {} cannot go back from {} tokens to {}: the state of the model's "
                      "recurrent layers is of its last token only. Clear it and run it again",
                      seq, Length(seq), tokens));
    }
    TERSEKV_RETURN_IF_ERROR(cache_->Truncate(seq, tokens));
    if (tokens == 0) Clear(seq);
    return {};
  }
  void Clear(int32_t seq) override {
    cache_->Remove(seq);
    if (model_->info.recurrent && seq >= 0 && seq < options_.max_sequences) {
      llama_memory_seq_rm(llama_get_memory(context_.get()), seq, -1, -1);
    }
  }
  Status Save(const std::string& path, int32_t seq, std::span<const int32_t> tokens) const override {
    TERSEKV_RETURN_IF_ERROR(CheckSaves());
    return SaveSession(path, *cache_, seq, tokens, IdentityOf(model_->info));
  }
  Status Restore(const SavedSession& saved, int32_t seq) override {
    TERSEKV_RETURN_IF_ERROR(CheckSaves());
    if (seq < 0 || seq >= options_.max_sequences || saved.state.tokens() > options_.ctx) {
      return InvalidArgument(fmt::format("{} saved tokens into sequence {}: the session has {} sequences of {}",
                                         saved.state.tokens(), seq, options_.max_sequences, options_.ctx));
    }
    return RestoreSession(saved, IdentityOf(model_->info), cache_.get(), seq);
  }
  Status FillWithNoise(int32_t seq, int64_t tokens) override {
    if (Length(seq) != 0) return InvalidArgument(fmt::format("sequence {} is not empty: clear it first", seq));
    if (seq < 0 || seq >= options_.max_sequences || tokens < 0 || tokens > options_.ctx) {
      return InvalidArgument(fmt::format("{} tokens of sequence {}: the session has {} sequences of {}", tokens, seq,
                                         options_.max_sequences, options_.ctx));
    }
    ThreadPool pool(options_.threads);
    const Status status = FillCacheWithNoise(seq, tokens, &pool, cache_.get());
    if (!status.ok()) cache_->Remove(seq);
    return status;
  }
  Status Reconfigure(const std::string& kv, std::shared_ptr<const Profile> profile,
                     const std::vector<LayerBits>& layer_bits) override {
    if (kv.starts_with(kStockPrefix))
      return Unsupported("a packed cache cannot become llama.cpp's own: open a session");
    CacheConfig config = cache_->config();
    TERSEKV_RETURN_IF_ERROR(ConfigureCache(model_->info, kv, profile, layer_bits, &config));
    Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
    if (!cache) return cache.error();
    TERSEKV_RETURN_IF_ERROR(CheckBudget(config, **cache, options_));
    cache_ = std::move(*cache);
    llama_memory_clear(llama_get_memory(context_.get()), true);
    hook_.SetCache(cache_.get());
    kv_ = FormatSpec(config.spec);
    return {};
  }
  // Values of MLA are a part of its keys: llama.cpp stores them once, also where we do not.
  CacheUsage Usage() const override {
    CacheUsage usage = cache_->Usage();
    const size_t twice = 2 * LatentsKeptTwice(*model_, cache_->config()) * static_cast<size_t>(usage.tokens);
    if (twice == 0) return usage;
    usage.bits_effective *= static_cast<double>(usage.bytes_f16) / static_cast<double>(usage.bytes_f16 - twice);
    usage.bytes_f16 -= twice;
    return usage;
  }
  HostMode mode() const override { return mode_; }
  double attention_seconds() const override { return hook_.attention_seconds(); }

 protected:
  Status RunPass(std::span<const BatchToken> tokens) override {
    const Status failed = Run(tokens, nullptr);
    if (failed.ok() || !model_->info.recurrent) return failed;
    // Not one sequence alone: llama.cpp begins a state by multiplying the old one by 0, which keeps what is not a
    // number.
    llama_memory_clear(llama_get_memory(context_.get()), true);
    for (int seq = 0; seq < options_.max_sequences; ++seq) cache_->Remove(seq);
    return {failed.code(), failed.message() +
                               "; the session's sequences are empty now, because the state of recurrent "
                               "layers cannot go back"};
  }

  Status RunDraft(std::span<const BatchToken> tokens) override { return Run(tokens, &draft_); }
  Status KeepDraft(int64_t tokens) override { return draft_.Append(static_cast<size_t>(tokens), cache_.get()); }

  // llama.cpp runs a batch of recurrent models sequence by sequence; what the hook is told must be in that order.
  size_t PassLength(std::span<const BatchToken> batch) const override {
    const size_t most = SessionBase::PassLength(batch);
    if (!model_->info.recurrent) return most;
    size_t same = 1, different = 1;  // tokens of one sequence; of as many sequences
    while (same < most && batch[same].seq == batch[0].seq) ++same;
    std::set<int32_t> seen = {batch[0].seq};
    while (different < most && seen.insert(batch[different].seq).second) ++different;
    return std::max(same, different);
  }

  Status TakeBack(int32_t seq, int64_t tokens) override {
    return model_->info.recurrent ? Status() : Truncate(seq, tokens);  // RunPass has emptied it
  }

 private:
  Status Run(std::span<const BatchToken> tokens, DraftRows* draft) {
    std::vector<StepToken> step;
    for (const BatchToken& t : tokens) step.push_back({t.seq, t.pos});
    hook_.Begin(step, draft);
    const int rc = llama_decode(context_.get(), batch_.Fill(tokens));
    const Status status = hook_.End(rc == 0);
    EmptyStaging(tokens);
    if (rc != 0) return Internal(fmt::format("llama_decode failed with code {}: {}", rc, TakeEngineErrors()));
    return status;
  }

  Status CheckSaves() const {
    if (!model_->info.recurrent) return {};
    return Unsupported(
        "a session file holds keys and values, and this model's recurrent layers keep a state in "
        "llama.cpp beside them: run the tokens again");
  }
  // Positions go on counting in what is left.
  void EmptyStaging(std::span<const BatchToken> tokens) {
    const llama_memory_t memory = llama_get_memory(context_.get());
    if (!model_->info.recurrent) {
      llama_memory_clear(memory, false);
      return;
    }
    for (const BatchToken& t : tokens) {  // the newest token's cell keeps the recurrent state alive
      if (const llama_pos last = llama_memory_seq_pos_max(memory, t.seq); last > 0) {
        llama_memory_seq_rm(memory, t.seq, 0, last);
      }
    }
  }

  std::unique_ptr<KvCache> cache_;
  Hook hook_;
  HostMode mode_;
  DraftRows draft_;
};

Status Resolve(const Model& model, SessionOptions* options) {
  if (options->threads < 0 || options->threads > 512) {
    return InvalidArgument(fmt::format("threads is {}: the range is 1 to 512, 0 for all cores", options->threads));
  }
  if (options->threads == 0) options->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (options->ubatch < 1 || options->ubatch > 8192) {
    return InvalidArgument(fmt::format("ubatch is {}: the range is 1 to 8192", options->ubatch));
  }
  if (options->max_sequences < 1 || options->max_sequences > 256) {
    return InvalidArgument(fmt::format("max_sequences is {}: the range is 1 to 256", options->max_sequences));
  }
  if (options->ctx < 0) return InvalidArgument(fmt::format("ctx is {}: it cannot be negative", options->ctx));
  if (options->ctx == 0) options->ctx = model.info.ctx_train;
  if (const int64_t from = model.long_rope_from;
      from > 0 && options->ctx <= from && options->ubatch > from - from % 256) {
    if (from < 256) {
      return Unsupported(
          fmt::format("a LongRoPE model trained for {} tokens: llama.cpp's smallest cache, 256, already "
                      "takes its long factors; ask for a ctx above {}",
                      from, from));
    }
    options->ubatch = static_cast<int>(from - from % 256);  // a staging area that keeps to the short factors
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::Open(const SessionOptions& given) {
  SessionOptions options = given;
  const bool stock = options.kv.starts_with(kStockPrefix);
  if (!stock) {  // before the model is loaded
    Result<KvSpec> spec = ParseSpec(options.kv);
    if (!spec) return spec.error();
    if (spec->k.family != Family::kAuto) TERSEKV_RETURN_IF_ERROR(CheckSupported(*spec));
  }
  Result<std::shared_ptr<const Model>> model = LoadModel(options.model_path);
  if (!model) return model.error();
  TERSEKV_RETURN_IF_ERROR(Resolve(**model, &options));
  if (stock) return OpenStock(*model, options);
  TERSEKV_RETURN_IF_ERROR((*model)->packable);
  CacheConfig config;
  TERSEKV_RETURN_IF_ERROR(ConfigureCache((*model)->info, options.kv, options.profile, options.layer_bits, &config));
  config.byte_budget = options.kv_bytes;
  config.max_workers = options.threads;
  config.arithmetic = options.arithmetic;
  config.rollback = options.rollback;
  config.share_pages = options.share_pages;
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
  if (!cache) return cache.error();
  TERSEKV_RETURN_IF_ERROR(CheckBudget(config, **cache, options));
  Result<HostMode> mode = ChooseMode(**model, options);
  if (!mode) return mode.error();
  auto session = std::make_unique<TerseSession>(*model, options, FormatSpec(config.spec), std::move(*cache), *mode);
  TERSEKV_RETURN_IF_ERROR(session->Start());
  return std::unique_ptr<Session>(std::move(session));
}

}  // namespace tersekv::llama
