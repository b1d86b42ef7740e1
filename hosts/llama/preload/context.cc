// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <thread>

#include "hosts/llama/cache_config.h"
#include "hosts/llama/preload/engine.h"
#include "hosts/llama/preload/say.h"
#include "hosts/llama/self_test.h"
#include "src/base/check.h"

namespace tersekv::llama::preload {
namespace {

constexpr int kKeepBack = 64;  // tokens, drafts that are rejected among them
constexpr int kMostKeepBack = 32768;
constexpr int kFull = 1, kInvalid = -1, kFailed = -3;  // of llama_decode

// The program's parameters for a context that is only a staging area.
WideContextParams StagingParams(const WideContextParams& given, const Sizes& sizes, Hook* hook) {
  WideContextParams wide = given;
  llama_context_params& p = wide.params;
  p.n_ctx = sizes.staging;
  p.n_batch = sizes.batch;
  p.kv_unified = true;
  p.swa_full = true;
  p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  p.type_k = p.type_v = GGML_TYPE_F16;  // quantised types turn the rows before the hook sees them
  p.offload_kqv = p.op_offload = false;
  p.cb_eval = Hook::OnNode;
  p.cb_eval_user_data = hook;
  return wide;
}

std::vector<LayerBits> BitsOfLayers(const Settings& settings) {
  if (settings.bits == 0) return {};
  const Result<BudgetEntry> entry = FindBudget(*settings.profile, settings.bits);
  TERSEKV_CHECK(entry.has_value());  // ParseSettings has looked
  return LayerBitsOf(*entry);
}

// As llama.cpp: a program that asks for swa_full can go back as far as it likes, and shift positions; others can go
// back a little, and by checkpoints. Windows that no sequence outgrows are none.
Result<Sizes> SizesOf(const Model& model, const llama_context_params& params, const Settings& settings,
                      CacheConfig* config) {
  const auto plan = [&](const CacheConfig& c) {
    return PlanSizes(params, static_cast<int>(model.info.ctx_train), c, settings);
  };
  const int32_t widest = *std::ranges::max_element(config->windows);
  if (params.swa_full || widest == 0) {
    config->windows.clear();
    return plan(*config);
  }
  // A call of several passes that fails in a later one is taken back whole.
  const int64_t ubatch = std::min(params.n_ubatch, params.n_batch);
  config->keep_back = static_cast<int>(std::min<int64_t>(kKeepBack + params.n_batch - ubatch, kMostKeepBack));
  CacheConfig sized = *config;
  sized.keep_back += static_cast<int>(std::min<int64_t>(ubatch, kMostKeepBack));
  const Result<Sizes> sizes = plan(sized);
  if (!sizes || sizes->ctx_seq > static_cast<uint32_t>(widest + config->keep_back)) return sizes;
  config->windows.clear();
  config->keep_back = 0;
  return plan(*config);
}

int Threads(const llama_context_params& params) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(std::max({cores, params.n_threads, params.n_threads_batch}), 1, 512);
}

}  // namespace

Context::Context(std::shared_ptr<const Model> model, const Sizes& sizes, std::unique_ptr<KvCache> cache, HostMode mode,
                 int threads, const Settings& settings)
    : model_(std::move(model)),
      sizes_(sizes),
      history_(std::move(cache)),
      mode_(mode),
      drift_(history_.cache(), settings.drift, settings.drift_limit),
      hook_(history_.cache(), model_->layers, mode, threads, drift_.active() ? &drift_ : nullptr),
      rotator_(model_->layers),
      state_(&history_, IdentityOf(model_->info), sizes_) {
  static std::atomic<int> made = 0;
  id_ = ++made;
  watch_->context = this;
  history_.SetEdited([this](int32_t seq) { drift_.Edited(seq); });
}

Context::~Context() {
  StatusBoard::Get().Remove(watch_);
  if (handle_ != nullptr) llama_free(handle_);
}

Result<std::unique_ptr<Context>> Context::Create(std::shared_ptr<const Model> model, const WideContextParams& params,
                                                 const Settings& settings) {
  CacheConfig config;
  TERSEKV_RETURN_IF_ERROR(ConfigureCache(model->info, settings.kv, settings.profile, BitsOfLayers(settings), &config));
  const Result<Sizes> sizes = SizesOf(*model, params.params, settings, &config);
  if (!sizes) return sizes.error();
  config.byte_budget = sizes->budget;
  config.share_pages = settings.share;
  config.max_workers = Threads(params.params);
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
  if (!cache) return cache.error();
  SessionOptions trial;
  trial.threads = std::clamp(params.params.n_threads, 1, 512);
  const Result<HostMode> mode = ChooseMode(*model, trial);
  if (!mode) return mode.error();
  std::unique_ptr<Context> context(new Context(model, *sizes, std::move(*cache), *mode, trial.threads, settings));
  const auto make = Recast<InitFromWide>(&llama_init_from_model);
  context->handle_ = make(model->model, StagingParams(params, *sizes, &context->hook_));
  if (context->handle_ == nullptr) return Internal("llama.cpp makes no context, see its own messages");
  context->memory_ = llama_get_memory(context->handle_);
  if (context->memory_ == nullptr) return Unsupported("this context has no memory of its own");
  TERSEKV_RETURN_IF_ERROR(context->Try());
  context->hook_.SetNext(params.params.cb_eval, params.params.cb_eval_user_data);
  StatusBoard::Get().Add(context->watch_);
  context->Introduce(settings);
  return context;
}

// Two tokens through the very context that the program gets, at once if its batch takes them.
Status Context::Try() {
  llama_token tokens[] = {0, 0};
  llama_pos positions[] = {0, 1};
  const BatchToken trial[] = {{0, {0}}, {1, {0}}};
  const uint32_t at_once = std::min(2u, sizes_.batch);
  hook_.SetNext(Rotator::Observe, &rotator_);
  int rc = 0;
  for (uint32_t i = 0; i < 2 && rc == 0; i += at_once) {
    llama_batch batch = llama_batch_get_one(tokens + i, static_cast<int32_t>(at_once));
    batch.pos = positions + i;
    rc = Decode({trial + i, at_once}, [&] { return llama_decode(handle_, batch); });
  }
  Clear(true);
  activity_ = {};
  attention_before_ = hook_.attention_seconds();
  llama_perf_context_reset(handle_);
  if (rc != 0) return Internal(fmt::format("two tokens of a trial failed with code {}", rc));
  return {};
}

void Context::Introduce(const Settings& settings) const {
  const CacheConfig& config = history_.cache().config();
  const std::string spec = settings.bits != 0
                               ? fmt::format("{} with {} bits on average", FormatSpec(config.spec), settings.bits)
                               : FormatSpec(config.spec);
  Say(1, "{}: keys and values packed as {} ({:.4g} bits a value with scales){}, host mode {}, llama.cpp {}",
      model_->info.name, spec, BitsSpec(config),
      settings.profile != nullptr ? ", profile " + settings.profile_path : "", HostModeName(mode_), LlamaVersion());
  const std::string prefix =
      settings.prefix > 0 && sizes_.sequences > 1
          ? fmt::format(" (the first {} of each sequence, the same in all, are there once)", settings.prefix)
          : "";
  Say(1,
      "n_ctx {} ({} sequence{}, {} tokens at most in one): {} bytes for the history, which hold {} tokens{}; f16 would "
      "take {} bytes for {} tokens; llama.cpp's own cache has {} cells of staging",
      sizes_.ctx, sizes_.sequences, sizes_.sequences == 1 ? "" : "s", sizes_.ctx_seq, sizes_.budget,
      sizes_.total_tokens, prefix, sizes_.f16, sizes_.requested, sizes_.staging);
}

// What llama.cpp checks against its own cache, which is empty here.
int Context::Check(std::span<const BatchToken> batch) const {
  std::map<int32_t, int32_t> last;
  std::map<int32_t, int64_t> added;
  for (const BatchToken& t : batch) {
    if (t.seqs.empty()) {
      Say(0, "a token of no sequence");
      return kInvalid;
    }
    for (const int32_t seq : t.seqs) {
      if (seq < 0 || seq >= sizes_.sequences) {
        Say(0, "sequence {}: the context has {}", seq, sizes_.sequences);
        return kInvalid;
      }
      const auto [it, fresh] = last.emplace(seq, history_.Last(seq));
      if (fresh) {
        if (const Status s = history_.Usable(seq); !s.ok()) {
          Say(0, "sequence {}: {}", seq, s.message());
          return s.code() == StatusCode::kOutOfBudget ? kFull : kInvalid;
        }
      }
      if (t.pos < 0 || (it->second >= 0 && t.pos != it->second + 1)) {
        Say(0, "sequence {}: position {} follows {}: positions must be consecutive", seq, t.pos, it->second);
        return kInvalid;
      }
      it->second = t.pos;
      if (history_.cache().Length(seq) + ++added[seq] > sizes_.ctx_seq) return kFull;
    }
  }
  return 0;
}

int Context::Decode(std::span<const BatchToken> batch, const std::function<int()>& run) {
  const auto start = std::chrono::steady_clock::now();
  const int rc = Run(batch, run);
  if (rc != 0) {
    ++(rc == kFull ? activity_.full : rc == kInvalid ? activity_.refused : activity_.failed);
    return rc;
  }
  std::map<int32_t, int64_t> tokens;
  for (const BatchToken& t : batch) ++tokens[t.seqs[0]];
  bool prompt = false;
  for (const auto& [seq, n] : tokens) {
    prompt |= n > 1;
    (n > 1 ? activity_.prompt : activity_.generation).tokens += n;
  }
  Activity::Kind& kind = prompt ? activity_.prompt : activity_.generation;
  ++kind.calls;
  kind.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return 0;
}

int Context::Run(std::span<const BatchToken> batch, const std::function<int()>& run) {
  if (!causal_) {
    Say(0, "attention that is not causal was asked for: packed attention is causal");
    return kInvalid;
  }
  if (const int rc = Check(batch); rc != 0) return rc;
  std::vector<StepToken> tokens;
  std::vector<uint32_t> rows;  // of the batch; a token of several sequences is stored in each of them
  for (size_t i = 0; i < batch.size(); ++i) {
    for (const int32_t seq : batch[i].seqs) {
      tokens.push_back({seq, batch[i].pos});
      rows.push_back(static_cast<uint32_t>(i));
    }
  }
  const History::Mark mark = history_.MarkOf(tokens);
  history_.Changed();
  hook_.Begin(tokens, nullptr, tokens.size() == batch.size() ? std::span<const uint32_t>() : rows);
  const int rc = run();
  const Status status = hook_.End(rc == 0);
  llama_memory_clear(memory_, false);
  if (rc == 0 && status.ok()) {
    history_.Changed();
    if (const std::string drift = drift_.Ended(); !drift.empty()) Say(1, "{}", drift);
    return 0;
  }
  history_.GoBack(mark);
  if (status.code() == StatusCode::kOutOfBudget) {
    Say(1, "{}", status.message());
    return kFull;
  }
  if (!status.ok()) Say(0, "{}", status.message());
  return rc != 0 ? rc : kFailed;
}

ContextReport Context::Report() const {
  const KvCache& cache = history_.cache();
  ContextReport report;
  report.id = id_;
  report.model = model_->info.name;
  report.spec = FormatSpec(cache.config().spec);
  report.mode = HostModeName(mode_);
  report.bits_spec = BitsSpec(cache.config());
  report.ctx = sizes_.ctx;
  report.ctx_seq = sizes_.ctx_seq;
  report.sequences = sizes_.sequences;
  report.budget = sizes_.budget;
  report.activity = activity_;
  report.activity.attention_seconds = hook_.attention_seconds() - attention_before_;
  report.drift = drift_.report();
  report.broken = broken_;
  if (broken_) return report;  // a step may be open
  report.usage = cache.Usage();
  report.usage.scratch += hook_.scratch_bytes();
  DescribeSlots(cache, &report);
  return report;
}

void Context::Clear(bool data) {
  history_.Clear();
  llama_memory_clear(memory_, data);
}

}  // namespace tersekv::llama::preload
