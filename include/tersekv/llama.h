// SPDX-License-Identifier: Apache-2.0
// Host for llama.cpp: runs a GGUF model with its history in a packed KvCache, through an unmodified libllama
// (docs/hosts.md). Link tersekv::llama. A Session is for one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/calibration.h"
#include "tersekv/profile.h"
#include "tersekv/session.h"
#include "tersekv/status.h"

namespace tersekv::llama {

// How the host works inside the engine; kAuto takes the best that passes a two-token self-test here.
enum class HostMode { kAuto, kCustom, kOverwrite };
const char* HostModeName(HostMode mode);  // "auto", "custom", "overwrite"

struct SessionOptions {
  std::string model_path;   // GGUF
  std::string kv = "k4v4";  // spec string; "stock-" f32, f16, bf16, q8_0, q5_0, q4_0: llama.cpp's own cache
  int64_t ctx = 0;          // most tokens of one sequence; 0 = what the model was trained for
  int max_sequences = 1;
  int ubatch = 512;     // tokens a forward pass
  int threads = 0;      // 0 = all cores
  size_t kv_bytes = 0;  // byte budget of the cache; 0 = none
  int rollback = 0;     // newest tokens that Truncate takes back without a trace (CacheConfig::rollback)
  HostMode mode = HostMode::kAuto;
  bool flash_attention = true;  // stock-* only
  bool self_test = true;        // two tokens against a stock context at Open
  Arithmetic arithmetic = Arithmetic::kInt16;
  bool share_pages = true;  // pages that sequences have in common are held once (CacheConfig::share_pages)
  // Used where kv says mean=stats or mean=profile (kv() then says mean=profile), and by kv "auto", which becomes what
  // the profile recommends. Refused when it is of another model.
  std::shared_ptr<const Profile> profile;
  std::vector<LayerBits> layer_bits;  // by KV layer, or empty: as kv says ("kNvN" only)
  StatisticsSink* sink = nullptr;     // sees all that passes through our attention; lives longer than the session
};

struct ModelInfo {
  std::string name;  // general.name, else the file's
  std::string description, architecture;
  std::string fingerprint;  // differs for other weights, metadata or tokenizer (docs/hosts.md)
  ChannelOrder channel_order = ChannelOrder::kInterleaved;  // of K rows as the engine makes them
  int64_t ctx_train = 0;
  int vocab = 0, heads = 0;
  std::vector<LayerShape> layers;  // that keep K and V; of MLA: K is the latent with its rotary part, V the latent
  std::vector<bool> latent;        // by layer: MLA. A cache keeps the latent once where the spec can (HoldsLatents)
  std::vector<int> windows;        // by layer: tokens that a query sees, its own included; 0 = all
  bool recurrent = false;          // other layers keep a state in llama.cpp: sequences can be cleared, not truncated
  std::string chat_template;       // empty when the file has none
  size_t weight_bytes = 0;
};

struct BatchToken {
  int32_t token = 0;
  int32_t pos = 0;
  int32_t seq = 0;
  bool logits = false;  // wanted after the call
};

struct ChatMessage {
  std::string role, content;
};

class Session {
 public:
  // Errors: kNotFound (no file), kDataLoss (not a GGUF, truncated), kUnsupported (architecture or spec, with the
  // reason), kInvalidArgument (spec text, sizes), kOutOfBudget (kv_bytes cannot hold ctx).
  static Result<std::unique_ptr<Session>> Open(const SessionOptions& options);
  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  virtual Result<std::vector<int32_t>> Tokenize(std::string_view text, bool add_special, bool parse_special) const = 0;
  virtual std::string Piece(int32_t token) const = 0;
  virtual bool IsEndOfGeneration(int32_t token) const = 0;
  // The prompt of the model's own chat template, ending where the assistant speaks.
  virtual Result<std::string> ApplyChatTemplate(std::span<const ChatMessage> messages) const = 0;

  // Runs the batch (split into forward passes of `ubatch` tokens) and appends it to the history. On failure the history
  // has its former length; a batch of one pass leaves it exactly as it was, while rows that earlier passes of a longer
  // batch pushed out of the raw window stay packed (docs/decisions/0004-after-a-truncation.md). Over budget or ctx:
  // kOutOfBudget. With recurrent layers a failed pass empties all sequences instead; the message says so.
  virtual Status Decode(std::span<const BatchToken> batch) = 0;
  // Same for one sequence whose next position is its length; logits of the last token. progress(done, total) may be
  // null.
  virtual Status Prefill(std::span<const int32_t> tokens, int32_t seq,
                         const std::function<void(size_t, size_t)>& progress) = 0;
  // Speculative decoding: runs tokens of one sequence (one forward pass of at most `ubatch`) without making them
  // history; Logits has all that were asked for. AcceptDraft(n) then appends the first n as if they alone had been
  // decoded: bytes, statistics and raw window are those of a history that never saw the rest. 0 or no call drops all,
  // and so does any other decoding, truncating or clearing in between. kUnsupported with recurrent layers.
  virtual Status DecodeDraft(std::span<const BatchToken> draft) = 0;
  virtual Status AcceptDraft(int64_t tokens) = 0;
  // Logits [vocab] of the i-th token of the last batch that asked for them.
  virtual std::span<const float> Logits(int i) const = 0;

  virtual int64_t Length(int32_t seq) const = 0;
  // kUnsupported with recurrent layers, unless to 0 tokens.
  virtual Status Truncate(int32_t seq, int64_t tokens) = 0;
  virtual void Clear(int32_t seq) = 0;

  // A sequence to a file and back (tersekv/session.h). tokens: those of the sequence, Length(seq) of them.
  // kUnsupported: stock-*, and models with recurrent layers, whose state llama.cpp keeps. Restored sequences go on bit
  // for bit.
  virtual Status Save(const std::string& path, int32_t seq, std::span<const int32_t> tokens) const = 0;
  virtual Status Restore(const SavedSession& saved, int32_t seq) = 0;

  // Makes an empty sequence `tokens` tokens long with made-up K and V, without running the model over them: for
  // measuring speed at a depth.
  virtual Status FillWithNoise(int32_t seq, int64_t tokens) = 0;

  // Another cache in place of this one's, with the engine and the model as they are; histories are lost. Arguments as
  // in SessionOptions. On failure the session is as it was. kUnsupported: stock-* on either side.
  virtual Status Reconfigure(const std::string& kv, std::shared_ptr<const Profile> profile,
                             const std::vector<LayerBits>& layer_bits) = 0;

  virtual CacheUsage Usage() const = 0;
  virtual const ModelInfo& model() const = 0;
  virtual const std::string& kv() const = 0;  // canonical spec
  virtual HostMode mode() const = 0;          // in use
  virtual int threads() const = 0;
  virtual double attention_seconds() const = 0;  // spent in our attention since Open, as worker 0 sees it

 protected:
  Session() = default;
};

ModelIdentity IdentityOf(const ModelInfo& model);

// The cache that a session with these options has; its budget, rollback and workers are left open. kv: not stock-*.
Result<CacheConfig> SessionCacheConfig(const ModelInfo& model, const std::string& kv,
                                       const std::shared_ptr<const Profile>& profile,
                                       const std::vector<LayerBits>& layer_bits);

// What kv "auto" stands for with this profile: metadata "recommended_spec", else the probe's advice on quality.
Result<std::string> RecommendedSpec(const Profile& profile);

std::string LlamaVersion();  // of the library that is loaded

}  // namespace tersekv::llama
