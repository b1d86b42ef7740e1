// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "hosts/llama/model.h"
#include "hosts/llama/weights.h"
#include "src/base/check.h"
#include "src/base/thread_pool.h"
#include "tersekv/llama_calibration.h"
#include "tersekv/logits.h"

namespace tersekv::llama {
namespace {

constexpr int64_t kLeastText = 160;  // tokens: some must leave the raw window
constexpr int kUbatch = 256;
constexpr int kFloorBits = 8;  // of a raw side

// `count` contexts of `length` tokens, one in each of `count` equal parts of the text: at its begin or at its end.
std::vector<std::vector<int32_t>> Spread(const std::vector<int32_t>& text, const std::vector<int32_t>& bos,
                                         int64_t count, int64_t length, bool at_end) {
  std::vector<std::vector<int32_t>> contexts;
  const auto size = static_cast<int64_t>(text.size());
  const int64_t own = std::min(length - static_cast<int64_t>(bos.size()), size);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t part = at_end ? (i + 1) * size / count - own : i * size / count;
    const int64_t begin = std::clamp<int64_t>(part, 0, size - own);
    std::vector<int32_t>& context = contexts.emplace_back(bos);
    context.insert(context.end(), text.begin() + begin, text.begin() + begin + own);
  }
  return contexts;
}

class Host : public LlamaCalibrationHost {
 public:
  explicit Host(const CalibrationHostOptions& options) : options_(options) {}

  Status Start() {
    Result<KvSpec> spec = ParseSpec(options_.kv);
    if (!spec) return spec.error();
    if (spec->k.family != Family::kLloydMax || spec->v.family != Family::kLloydMax) {
      return InvalidArgument(fmt::format("bits are measured with a kNvN, not with '{}'", options_.kv));
    }
    holds_latents_ = HoldsLatents(*spec);
    if (options_.tokens < 1 || options_.context < 1 || options_.kl_contexts < 1 || options_.kl_scored < 1 ||
        options_.kl_context < options_.kl_scored) {
      return InvalidArgument(
          "calibration: tokens and contexts are at least 1, scored tokens at most those of a context");
    }
    if (Status s = Open(options_.kv, std::max(options_.kl_context, kLeastText), nullptr, &packed_); !s.ok()) return s;
    Result<std::vector<int32_t>> text = packed_->Tokenize(options_.text, false, false);
    if (!text) return text.error();
    const auto size = static_cast<int64_t>(text->size());
    if (size < kLeastText) {
      return InvalidArgument(fmt::format("the text has {} tokens, calibration needs {} or more, better {}", size,
                                         kLeastText, options_.tokens));
    }
    Result<std::vector<int32_t>> bos = packed_->Tokenize("", true, true);
    if (!bos) return bos.error();
    if (bos->size() > 1) bos->resize(1);
    // Never the same tokens twice for statistics.
    const int64_t tokens = std::min(options_.tokens, size), length = std::min({options_.context, tokens, TrainedFor()});
    statistics_ = Spread(*text, *bos, tokens / length, length, false);
    const int64_t kl_length = std::min({options_.kl_context, size, TrainedFor()});
    if (kl_length < kLeastText) {
      return InvalidArgument(fmt::format(
          "contexts of {} tokens would stay in the raw window, where bits do not matter: measuring runs need "
          "{} or more (asked {}, the text has {}, the model was trained for {})",
          kl_length, kLeastText, options_.kl_context, size, TrainedFor()));
    }
    const int64_t kl_count = std::clamp<int64_t>(size / kl_length, 1, options_.kl_contexts);
    scored_of_context_ = std::min(options_.kl_scored, kl_length - kl_length / 4);
    contexts_ = Spread(*text, *bos, kl_count, kl_length, true);
    pool_ = std::make_unique<ThreadPool>(packed_->threads());
    return {};
  }

  const ModelInfo& info() const override { return packed_->model(); }
  ModelIdentity model() const override {
    ModelIdentity model = IdentityOf(packed_->model());
    for (size_t l = 0; l < model.layers.size(); ++l) model.layers[l].latent = Latent(l);
    return model;
  }
  ChannelOrder channel_order() const override { return packed_->model().channel_order; }
  int64_t scored_tokens() const override { return static_cast<int64_t>(contexts_.size()) * scored_of_context_; }
  int64_t statistics_tokens() const override {
    int64_t sum = 0;
    for (const auto& context : statistics_) sum += static_cast<int64_t>(context.size());
    return sum;
  }

  std::vector<std::vector<float>> OutputSquares() const override {
    const auto model = LoadModel(options_.model_path);  // shared with the session
    if (!model) return {};
    std::vector<int> numbers;
    for (size_t l = 0; l < (*model)->layers.ordinals.size(); ++l) {
      if ((*model)->layers.ordinals[l] >= 0) numbers.push_back(static_cast<int>(l));
    }
    return ReadOutputSquares(options_.model_path, info().layers, numbers);
  }

  Status CollectStatistics(StatisticsSink* sink) override {
    std::unique_ptr<Session> session;
    TERSEKV_RETURN_IF_ERROR(Open(options_.reference, options_.context + 1, sink, &session));
    int64_t done = 0;
    for (const std::vector<int32_t>& context : statistics_) {
      session->Clear(0);
      TERSEKV_RETURN_IF_ERROR(session->Prefill(context, 0, [&](size_t n, size_t) {
        if (options_.progress) options_.progress(done + static_cast<int64_t>(n), statistics_tokens());
      }));
      done += static_cast<int64_t>(context.size());
    }
    return {};
  }

  Status UseProfile(const Profile& profile) override {
    profile_ = std::make_shared<const Profile>(profile);
    measured_.clear();
    return packed_->Reconfigure(options_.kv, profile_, {});
  }

  Result<double> MeasureKl(std::span<const LayerBits> bits) override {
    std::vector<LayerBits> stored(bits.begin(), bits.end());
    int raw = 0, sides = 0;
    for (size_t l = 0; l < stored.size(); ++l) {
      for (int* width : {&stored[l].k, &stored[l].v}) {
        const bool counts = width == &stored[l].k || !Latent(l);
        sides += counts ? 1 : 0;
        if (*width != kRawBits) continue;
        *width = kFloorBits;
        raw += counts ? 1 : 0;
      }
    }
    const Result<double> kl = MeasureStored(stored);
    if (!kl || raw == 0) return kl;
    const Result<double> floor = MeasureStored(std::vector<LayerBits>(stored.size(), {kFloorBits, kFloorBits}));
    if (!floor) return floor;
    return *kl - *floor * raw / sides;
  }

 private:
  // Kept once: its V has no bits of its own.
  bool Latent(size_t layer) const {
    const std::vector<bool>& latent = packed_->model().latent;
    return layer < latent.size() && latent[layer] && holds_latents_;
  }

  int64_t TrainedFor() const {
    const int64_t trained = packed_->model().ctx_train;
    return trained > 0 ? trained : options_.context;
  }

  Status Open(const std::string& kv, int64_t ctx, StatisticsSink* sink, std::unique_ptr<Session>* session) const {
    SessionOptions options;
    options.model_path = options_.model_path;
    options.kv = kv;
    options.ctx = ctx;
    options.ubatch = kUbatch;
    options.threads = options_.threads;
    options.mode = options_.mode;
    options.arithmetic = options_.arithmetic;
    options.sink = sink;
    Result<std::unique_ptr<Session>> opened = Session::Open(options);
    if (!opened) return opened.error();
    *session = std::move(*opened);
    return {};
  }

  // Calls visit(row, logits) for each scored token, the rows of a forward pass on all threads.
  template <class Visit>
  Status RunScored(Session* session, const Visit& visit) const {
    size_t row = 0;
    for (const std::vector<int32_t>& context : contexts_) {
      session->Clear(0);
      const auto length = static_cast<int64_t>(context.size());
      for (int64_t begin = 0; begin < length; begin += kUbatch) {
        const int64_t end = std::min<int64_t>(length, begin + kUbatch), first = length - scored_of_context_;
        std::vector<BatchToken> batch;
        for (int64_t pos = begin; pos < end; ++pos) {
          batch.push_back({context[static_cast<size_t>(pos)], static_cast<int32_t>(pos), 0, pos >= first});
        }
        TERSEKV_RETURN_IF_ERROR(session->Decode(batch));
        const auto rows = static_cast<int>(std::max<int64_t>(0, end - std::max(begin, first)));
        std::vector<std::span<const float>> logits;  // the engine is asked by one thread
        for (int r = 0; r < rows; ++r) logits.push_back(session->Logits(r));
        pool_->Run([&](int worker, int workers) {
          for (int r = worker; r < rows; r += workers) {
            visit(row + static_cast<size_t>(r), logits[static_cast<size_t>(r)]);
          }
        });
        row += static_cast<size_t>(rows);
      }
    }
    return {};
  }

  Status MakeReference() {
    std::unique_ptr<Session> session;
    TERSEKV_RETURN_IF_ERROR(Open(options_.reference, static_cast<int64_t>(contexts_[0].size()), nullptr, &session));
    const auto rows = static_cast<size_t>(scored_tokens()), vocab = static_cast<size_t>(info().vocab);
    std::vector<float> logits(rows * vocab);
    std::vector<LogitRow> analysed(rows);
    TERSEKV_RETURN_IF_ERROR(RunScored(session.get(), [&](size_t r, std::span<const float> row) {
      std::copy(row.begin(), row.end(), logits.begin() + static_cast<ptrdiff_t>(r * vocab));
      analysed[r] = AnalyseRow({logits.data() + r * vocab, vocab});
    }));
    for (const LogitRow& row : analysed) {
      if (!row.ok) return DataLoss("the reference's logits are not finite: the model file may be damaged");
    }
    logits_ = std::move(logits);
    reference_ = std::move(analysed);
    return {};
  }

  Result<double> MeasureStored(const std::vector<LayerBits>& bits) {
    for (const auto& [seen, kl] : measured_) {
      if (seen == bits) return kl;
    }
    if (reference_.empty()) {
      if (const Status s = MakeReference(); !s.ok()) return s;
    }
    if (const Status s = packed_->Reconfigure(options_.kv, profile_, bits); !s.ok()) return s;
    std::vector<double> kl(reference_.size());
    const Status s = RunScored(packed_.get(), [&](size_t r, std::span<const float> row) {
      kl[r] = KlDivergence(reference_[r], AnalyseRow(row));
    });
    if (!s.ok()) return s;
    double sum = 0;
    for (const double x : kl) sum += x;
    measured_.emplace_back(bits, sum / static_cast<double>(kl.size()));
    return measured_.back().second;
  }

  CalibrationHostOptions options_;
  bool holds_latents_ = false;
  std::unique_ptr<Session> packed_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::vector<int32_t>> statistics_, contexts_;
  int64_t scored_of_context_ = 0;
  std::shared_ptr<const Profile> profile_;
  std::vector<float> logits_;  // of the reference
  std::vector<LogitRow> reference_;
  std::vector<std::pair<std::vector<LayerBits>, double>> measured_;
};

}  // namespace

Result<std::unique_ptr<LlamaCalibrationHost>> MakeCalibrationHost(const CalibrationHostOptions& options) {
  auto host = std::make_unique<Host>(options);
  if (const Status s = host->Start(); !s.ok()) return s;
  return std::unique_ptr<LlamaCalibrationHost>(std::move(host));
}

}  // namespace tersekv::llama
