// SPDX-License-Identifier: Apache-2.0
// llama.cpp as it comes, under the same interface: the reference and the peer of our own sessions.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "hosts/llama/logging.h"
#include "hosts/llama/session_base.h"
#include "hosts/llama/stock_history.h"
#include "src/base/check.h"

namespace tersekv::llama {
namespace {

struct StockType {
  const char* name;
  ggml_type type;
};
constexpr StockType kTypes[] = {{"stock-f16", GGML_TYPE_F16},   {"stock-f32", GGML_TYPE_F32},
                                {"stock-bf16", GGML_TYPE_BF16}, {"stock-q8_0", GGML_TYPE_Q8_0},
                                {"stock-q5_0", GGML_TYPE_Q5_0}, {"stock-q4_0", GGML_TYPE_Q4_0}};

class StockSession : public SessionBase {
 public:
  StockSession(std::shared_ptr<const Model> model, const SessionOptions& options, ggml_type type)
      : SessionBase(std::move(model), options, options.kv), type_(type) {}

  Status Start() {
    if (!options_.layer_bits.empty() || options_.sink != nullptr) {
      return Unsupported("llama.cpp's own cache takes no bits of layers and no statistics: use a spec of ours");
    }
    if (options_.kv_bytes != 0) {
      return Unsupported("llama.cpp's own cache takes no byte budget: drop it, or use a packed spec");
    }
    if (options_.ctx > std::numeric_limits<int32_t>::max() / options_.max_sequences) {
      return InvalidArgument(fmt::format("a context of {} for {} sequences is beyond llama.cpp's 2^31 cells",
                                         options_.ctx, options_.max_sequences));
    }
    llama_context_params params = ContextParams(options_);
    params.n_ctx = static_cast<uint32_t>(options_.ctx * options_.max_sequences);
    params.type_k = params.type_v = type_;
    params.flash_attn_type = options_.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_.reset(llama_init_from_model(model_->model, params));
    if (context_ == nullptr) {
      return Unsupported(fmt::format("llama.cpp makes no context with a {} cache: {}", kv(), TakeEngineErrors()));
    }
    lengths_.assign(static_cast<size_t>(options_.max_sequences), 0);
    return {};
  }

  int64_t Length(int32_t seq) const override {
    return seq >= 0 && static_cast<size_t>(seq) < lengths_.size() ? lengths_[static_cast<size_t>(seq)] : 0;
  }
  Status Truncate(int32_t seq, int64_t tokens) override {
    if (tokens < 0) return InvalidArgument(fmt::format("cannot truncate to {} tokens: the least is 0", tokens));
    DropDraft();
    if (tokens >= Length(seq)) return {};
    if (!llama_memory_seq_rm(llama_get_memory(context_.get()), seq, static_cast<llama_pos>(tokens), -1)) {
      return Unsupported("llama.cpp cannot truncate this model's cache: clear it");
    }
    lengths_[static_cast<size_t>(seq)] = tokens;
    return {};
  }
  void Clear(int32_t seq) override {
    if (seq < 0 || static_cast<size_t>(seq) >= lengths_.size()) return;
    DropDraft();
    llama_memory_seq_rm(llama_get_memory(context_.get()), seq, -1, -1);
    lengths_[static_cast<size_t>(seq)] = 0;
  }

  Status FillWithNoise(int32_t seq, int64_t tokens) override {
    if (Length(seq) != 0) return InvalidArgument(fmt::format("sequence {} is not empty: clear it first", seq));
    if (seq < 0 || seq >= options_.max_sequences || tokens < 0 || tokens > options_.ctx) {
      return InvalidArgument(fmt::format("{} tokens of sequence {}: the session has {} sequences of {}", tokens, seq,
                                         options_.max_sequences, options_.ctx));
    }
    std::vector<BatchToken> real;  // rows of the model, which are then repeated
    for (int32_t t = 0; t < std::min<int64_t>({tokens, 64, options_.ubatch}); ++t) {
      real.push_back({(t * 37 + 11) % model_->info.vocab, t, seq, false});
    }
    if (real.empty()) return {};
    TERSEKV_RETURN_IF_ERROR(RunPass(real));
    std::vector<uint8_t> state(llama_state_seq_get_size(context_.get(), seq));
    llama_state_seq_get_data(context_.get(), state.data(), state.size(), seq);
    const auto repeated = RepeatState(state, seq, tokens);
    if (!repeated) return repeated.error();
    Clear(seq);
    if (llama_state_seq_set_data(context_.get(), repeated->data(), repeated->size(), seq) == 0) {
      return Internal(fmt::format("llama.cpp does not take a state of {} tokens: {}", tokens, TakeEngineErrors()));
    }
    lengths_[static_cast<size_t>(seq)] = tokens;
    return {};
  }

  Status Save(const std::string&, int32_t, std::span<const int32_t>) const override {
    return Unsupported("llama.cpp's own cache goes into no session file: use a packed spec such as k4v4");
  }
  Status Restore(const SavedSession&, int32_t) override { return Save("", 0, {}); }

  Status Reconfigure(const std::string&, std::shared_ptr<const Profile>, const std::vector<LayerBits>&) override {
    return Unsupported("llama.cpp's own cache cannot be reconfigured: open another session");
  }

  CacheUsage Usage() const override {
    size_t row = 0, values = 0;
    for (size_t l = 0; l < model_->info.layers.size(); ++l) {
      const LayerShape& shape = model_->info.layers[l];
      for (const int d : {shape.head_dim_k, model_->layers.latent[l] ? 0 : shape.head_dim_v}) {
        row += ggml_row_size(type_, static_cast<int64_t>(shape.kv_heads) * d);
        values += static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(d);
      }
    }
    CacheUsage usage;
    for (const int64_t n : lengths_) usage.tokens += n;
    usage.pages = usage.bytes_used = row * static_cast<size_t>(usage.tokens);
    usage.bytes_reserved = row * llama_n_ctx(context_.get());
    usage.bytes_f16 = 2 * values * static_cast<size_t>(usage.tokens);
    if (usage.tokens > 0) {
      usage.bits_effective = static_cast<double>(usage.bytes_used) * 8.0 /
                             (static_cast<double>(values) * static_cast<double>(usage.tokens));
    }
    return usage;
  }
  HostMode mode() const override { return HostMode::kAuto; }
  double attention_seconds() const override { return 0; }

 protected:
  // A failed llama_decode leaves the engine's cache as it was.
  Status RunPass(std::span<const BatchToken> tokens) override {
    DropDraft();
    if (const int rc = llama_decode(context_.get(), batch_.Fill(tokens)); rc != 0) {
      return Internal(fmt::format("llama_decode failed with code {}: {}", rc, TakeEngineErrors()));
    }
    for (const BatchToken& t : tokens) ++lengths_[static_cast<size_t>(t.seq)];
    return {};
  }

  // The engine's cache holds the draft until it is known what stays.
  Status RunDraft(std::span<const BatchToken> tokens) override {
    DropDraft();
    if (llama_model_n_swa(model_->model) > 0) {
      return Unsupported(
          "llama.cpp's own cache of a model with sliding windows cannot take drafts back: use a packed "
          "spec, or f16");
    }
    if (const int rc = llama_decode(context_.get(), batch_.Fill(tokens)); rc != 0) {
      return Internal(fmt::format("llama_decode failed with code {}: {}", rc, TakeEngineErrors()));
    }
    draft_seq_ = tokens[0].seq;
    return {};
  }
  Status KeepDraft(int64_t tokens) override {
    if (draft_seq_ >= 0) lengths_[static_cast<size_t>(draft_seq_)] += tokens;
    DropDraft();
    return {};
  }

 private:
  void DropDraft() {
    if (draft_seq_ < 0) return;
    const auto length = static_cast<llama_pos>(lengths_[static_cast<size_t>(draft_seq_)]);
    llama_memory_seq_rm(llama_get_memory(context_.get()), std::exchange(draft_seq_, -1), length, -1);
  }

  ggml_type type_;
  std::vector<int64_t> lengths_;
  int32_t draft_seq_ = -1;  // whose cells beyond its length are a draft's
};

}  // namespace

Result<std::unique_ptr<Session>> OpenStock(std::shared_ptr<const Model> model, const SessionOptions& options) {
  std::string known;
  for (const StockType& t : kTypes) {
    known += known.empty() ? t.name : std::string(", ") + t.name;
    if (options.kv != t.name) continue;
    auto session = std::make_unique<StockSession>(std::move(model), options, t.type);
    TERSEKV_RETURN_IF_ERROR(session->Start());
    return std::unique_ptr<Session>(std::move(session));
  }
  return InvalidArgument(fmt::format("unknown cache type '{}': llama.cpp's own are {}", options.kv, known));
}

}  // namespace tersekv::llama
