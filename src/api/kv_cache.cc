// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>

#include "src/api/shapes.h"
#include "src/base/check.h"
#include "src/codec/list.h"
#include "src/codec/record_list.h"
#include "src/cpu/attend.h"
#include "src/cpu/encoder.h"
#include "src/transform/hadamard.h"
#include "tersekv/cache.h"

namespace tersekv {
namespace {

// Attention scratch by shape and worker; caches that share memory share it.
class CpuCacheMemory : public CacheMemory {
 public:
  using CacheMemory::CacheMemory;
  std::vector<AttendScratch>& Of(const LayerShape& shape, int max_workers) {
    std::vector<AttendScratch>& scratch = attend_[{shape.heads, shape.kv_heads, shape.head_dim_k, shape.head_dim_v}];
    if (scratch.size() < static_cast<size_t>(max_workers)) scratch.resize(static_cast<size_t>(max_workers));
    return scratch;
  }
  size_t AttendBytes() const override {
    size_t bytes = 0;
    for (const auto& [shape, of_shape] : attend_) {
      for (const AttendScratch& scratch : of_shape) bytes += scratch.bytes();
    }
    return bytes;
  }
  void ReleaseAttend() override { attend_.clear(); }

 private:
  std::map<std::array<int, 4>, std::vector<AttendScratch>> attend_;
};

CacheConfig WithMemory(CacheConfig config) {
  if (!config.memory) config.memory = MakeCacheMemory(config.byte_budget);
  return config;
}

class CpuKvCache : public KvCache {
 public:
  explicit CpuKvCache(const CacheConfig& config) : memory_(config.memory), history_(config, MakeSimdEncoder()) {
    FindShapes();
  }

  Status BeginStep(std::span<const StepToken> tokens) override {
    TERSEKV_RETURN_IF_ERROR(history_.BeginStep(tokens));
    plans_.clear();
    scratch_.resize(shapes_.size());
    for (size_t s = 0; s < shapes_.size(); ++s) {
      plans_.push_back(std::make_unique<AttendPlan>(history_.step(), shapes_[s].heads, shapes_[s], config().spec.sink,
                                                    config().max_workers));
      scratch_[s] = &Memory().Of(shapes_[s], config().max_workers);
      for (AttendScratch& scratch : *scratch_[s]) scratch.Reserve(*plans_[s], shapes_[s], config().spec.page);
    }
    return {};
  }

  void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) override {
    TERSEKV_CHECK(!history_.step().empty() && worker >= 0 && worker < workers && workers <= config().max_workers);
    history_.WriteRows(layer, side, rows, row_stride, worker, workers);
  }

  void Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int workers) override {
    const size_t s = shape_of_[static_cast<size_t>(layer)];
    TERSEKV_CHECK(!history_.step().empty());
    TERSEKV_CHECK(queries.heads == shapes_[s].heads && worker < config().max_workers);
    const int32_t window = config().windows.empty() ? 0 : config().windows[static_cast<size_t>(layer)];
    TERSEKV_CHECK(window == 0 || (params.window > 0 && params.window <= window));
    const AttendCall call{&history_, plans_[s].get(), layer, params, queries};
    AttendOnCpu(call, &(*scratch_[s])[static_cast<size_t>(worker)], worker, workers);
  }

  Status EndStep() override {
    plans_.clear();
    return history_.EndStep();
  }
  void AbortStep() override {
    plans_.clear();
    history_.AbortStep();
  }

  int64_t Length(int32_t seq) const override {
    const Sequence* sequence = history_.Find(seq);
    return sequence != nullptr ? sequence->tokens() : 0;
  }
  int32_t LastPosition(int32_t seq) const override {
    const Sequence* sequence = history_.Find(seq);
    return sequence != nullptr && sequence->length() > 0 ? sequence->positions.back() : -1;
  }
  int32_t FirstPosition(int32_t seq) const override { return history_.FirstPosition(seq); }
  std::vector<int32_t> Sequences() const override { return history_.Sequences(); }
  Status Truncate(int32_t seq, int64_t tokens) override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.Truncate(seq, tokens);
  }
  Status Fork(int32_t from, int32_t to) override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.Fork(from, to);
  }
  Status RemoveRange(int32_t seq, int64_t begin, int64_t end) override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.RemoveRange(seq, begin, end);
  }
  Status Copy(int32_t from, int32_t to, int64_t begin, int64_t end) override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.Copy(from, to, begin, end);
  }
  Status Shift(int32_t seq, int64_t begin, int64_t end, int64_t delta,
               std::span<const KeyRotation> rotations) override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.Shift(seq, begin, end, delta, rotations);
  }
  Status SetQueryHeads(int layer, int heads) override {
    TERSEKV_CHECK(history_.step().empty());
    if (layer < 0 || layer >= static_cast<int>(config().layers.size())) {
      return InvalidArgument(fmt::format("layer {} is not there: the cache has {}", layer, config().layers.size()));
    }
    LayerShape shape = config().layers[static_cast<size_t>(layer)];
    shape.heads = heads;
    TERSEKV_RETURN_IF_ERROR(CheckShape(config().spec, shape, layer));
    history_.SetQueryHeads(layer, heads);
    FindShapes();
    return {};
  }
  void Remove(int32_t seq) override {
    TERSEKV_CHECK(history_.step().empty());
    history_.Remove(seq);
  }
  void Keep(int32_t seq) override {
    TERSEKV_CHECK(history_.step().empty());
    history_.Keep(seq);
  }
  Result<SequenceState> State(int32_t seq) const override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.State(seq);
  }
  Status Restore(int32_t seq, const SequenceState& state) override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.Restore(seq, state);
  }
  std::span<const int32_t> Positions(int32_t seq) const override {
    const Sequence* sequence = history_.Find(seq);
    if (sequence == nullptr) return {};
    if (sequence->removed == 0) return sequence->positions;
    positions_.clear();
    for (const int32_t stored : sequence->positions) {
      if (!IsRemoved(stored)) positions_.push_back(stored);
    }
    return positions_;
  }
  Status ReadRows(int32_t seq, int layer, Kv side, int64_t first, int64_t n, float* rows,
                  ptrdiff_t row_stride) const override {
    TERSEKV_CHECK(history_.step().empty());
    return history_.ReadRows(seq, layer, side, first, n, rows, row_stride);
  }
  int64_t TokensThatFit(int32_t seq) const override { return history_.TokensThatFit(seq); }

  CacheUsage Usage() const override {
    CacheUsage usage = history_.Usage();
    for (const auto& plan : plans_) usage.scratch += plan->state_bytes();
    return usage;
  }
  const CacheConfig& config() const override { return history_.config(); }

 private:
  void FindShapes() {
    shapes_.clear();
    shape_of_.clear();
    for (const LayerShape& shape : config().layers) {
      size_t s = 0;
      while (s < shapes_.size() && !(shapes_[s] == shape)) ++s;
      if (s == shapes_.size()) shapes_.push_back(shape);
      shape_of_.push_back(s);
    }
  }
  CpuCacheMemory& Memory() const { return static_cast<CpuCacheMemory&>(*memory_); }

  std::shared_ptr<CacheMemory> memory_;
  History history_;
  std::vector<LayerShape> shapes_;                    // distinct ones
  std::vector<size_t> shape_of_;                      // by layer
  mutable std::vector<int32_t> positions_;            // see Positions
  std::vector<std::unique_ptr<AttendPlan>> plans_;    // by shape, of the running step
  std::vector<std::vector<AttendScratch>*> scratch_;  // by shape: of each worker, of the running step
};

Status CheckLayerBits(const CacheConfig& config) {
  if (config.layer_bits.empty()) return {};
  if (config.layer_bits.size() != config.layers.size()) {
    return InvalidArgument(fmt::format("widths are given for {} layers, the cache has {}", config.layer_bits.size(),
                                       config.layers.size()));
  }
  if (config.spec.k.family != Family::kLloydMax || config.spec.v.family != Family::kLloydMax) {
    return Unsupported(fmt::format("'{}': only Lloyd-Max takes widths by layer; use k4v4", FormatSpec(config.spec)));
  }
  for (size_t l = 0; l < config.layer_bits.size(); ++l) {
    for (const int bits : {config.layer_bits[l].k, config.layer_bits[l].v}) {
      if (!kLloydMaxWidths.Contains(static_cast<float>(bits))) {
        return InvalidArgument(fmt::format("layer {} is to have {} bits: the range is {} to {}", l, bits,
                                           kLloydMaxBits.front(), kLloydMaxBits.back()));
      }
    }
  }
  return {};
}

Status CheckWindowsAndRollback(const CacheConfig& config) {
  if (!config.windows.empty() && config.windows.size() != config.layers.size()) {
    return InvalidArgument(
        fmt::format("windows are given for {} layers, the cache has {}", config.windows.size(), config.layers.size()));
  }
  for (size_t l = 0; l < config.windows.size(); ++l) {
    if (config.windows[l] < 0) {
      return InvalidArgument(
          fmt::format("the window of layer {} is {}: it is 1 or more, 0 for all", l, config.windows[l]));
    }
  }
  if (config.rollback < 0 || config.rollback > kMaxRollback) {
    return InvalidArgument(fmt::format("rollback is {}: the range is 0 to {}", config.rollback, kMaxRollback));
  }
  if (config.keep_back < 0 || config.keep_back > kMaxRollback) {
    return InvalidArgument(fmt::format("keep_back is {}: the range is 0 to {}", config.keep_back, kMaxRollback));
  }
  return {};
}

Status CheckStatistics(const CacheConfig& config) {
  const bool given = !config.statistics.empty();
  if (config.spec.mean == MeanMode::kProfile && !given) {
    return InvalidArgument(
        fmt::format("'{}': mean=profile needs a profile: make one with 'tersekv calibrate' and give "
                    "it, or use mean=stats",
                    FormatSpec(config.spec)));
  }
  if (!given) return {};
  if (config.statistics.size() != config.layers.size()) {
    return InvalidArgument(fmt::format("statistics are given for {} layers, the cache has {}", config.statistics.size(),
                                       config.layers.size()));
  }
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerShape& shape = config.layers[l];
    const LayerStats& s = config.statistics[l];
    const size_t heads = static_cast<size_t>(shape.kv_heads);
    const size_t k = heads * static_cast<size_t>(shape.head_dim_k), v = heads * static_cast<size_t>(shape.head_dim_v);
    if (s.k_mean.size() != k || s.k_scale.size() != k || s.v_mean.size() != v || s.v_scale.size() != v) {
      return InvalidArgument(fmt::format(
          "statistics of layer {} have {}, {}, {} and {} values; K takes {} and V {}: is the profile of another model?",
          l, s.k_mean.size(), s.k_scale.size(), s.v_mean.size(), s.v_scale.size(), k, v));
    }
    if (SharedScaleOf(config.spec.k.family) != SharedScale::kNone &&
        (s.k_variance.size() != k || s.v_variance.size() != v)) {
      return InvalidArgument(fmt::format(
          "'{}' takes its scale from the variances, and the statistics of layer {} have {} of K and {} of V; they "
          "must have {} and {}",
          FormatSpec(config.spec), l, s.k_variance.size(), s.v_variance.size(), k, v));
    }
    for (const std::vector<float>* values :
         {&s.k_mean, &s.k_scale, &s.v_mean, &s.v_scale, &s.k_variance, &s.v_variance}) {
      const bool scale = values == &s.k_scale || values == &s.v_scale;
      const bool variance = values == &s.k_variance || values == &s.v_variance;
      for (const float x : *values) {
        if (!std::isfinite(x) || (scale && !(x > 0)) || (variance && x < 0)) {
          return InvalidArgument(fmt::format(
              "statistics of layer {} hold {}: means must be finite, scales above 0, variances not below it", l, x));
        }
      }
    }
  }
  return {};
}

Status CheckLatent(const KvSpec& spec, const LayerShape& shape, int layer) {
  if (shape.kv_heads != 1 || shape.head_dim_v >= shape.head_dim_k) {
    return InvalidArgument(
        fmt::format("layer {} keeps a latent, with {} KV heads of {} / {}: a latent has one head, and keys longer than "
                    "values by their rotary part",
                    layer, shape.kv_heads, shape.head_dim_k, shape.head_dim_v));
  }
  if (!HoldsLatents(spec)) {
    return Unsupported(
        fmt::format("layer {} keeps a latent, and '{}' has no page for one: use k4v4, a raw type, or "
                    "keep keys and values (latent = false)",
                    layer, FormatSpec(spec)));
  }
  if (const int rotary = shape.head_dim_k - shape.head_dim_v; !spec.raw() && rotary % 4 != 0) {
    return Unsupported(
        fmt::format("layer {} has {} rotary channels: this version packs latents with multiples of 4", layer, rotary));
  }
  return {};
}

}  // namespace

bool HoldsLatents(const KvSpec& spec) {
  return spec.raw() || (StorageOf(spec.k.family) == Storage::kCodes && spec.mean != MeanMode::kPage);
}

Status CheckShape(const KvSpec& spec, const LayerShape& shape, int layer) {
  if (shape.kv_heads < 1 || shape.heads < shape.kv_heads || shape.heads % shape.kv_heads != 0) {
    return InvalidArgument(
        fmt::format("layer {} has {} query heads over {} KV heads: the first must be a multiple of the "
                    "second",
                    layer, shape.heads, shape.kv_heads));
  }
  if (shape.latent) TERSEKV_RETURN_IF_ERROR(CheckLatent(spec, shape, layer));
  for (const Kv side : {Kv::kK, Kv::kV}) {
    int d = side == Kv::kK ? shape.head_dim_k : shape.head_dim_v;
    if (d < 1 || d > kMaxHeadDim) {
      return InvalidArgument(fmt::format("layer {} has head_dim {}: the range is 1 to {}", layer, d, kMaxHeadDim));
    }
    if (shape.latent) d = shape.head_dim_v;  // what is packed
    if (!spec.raw() && (d < kMinPackedHeadDim || d % kPackedHeadDimStep != 0)) {
      return Unsupported(
          fmt::format("layer {} has head_dim {}, and this version packs multiples of {} from {} to {}: use a "
                      "raw type (f16)",
                      layer, d, kPackedHeadDimStep, kMinPackedHeadDim, kMaxHeadDim));
    }
    if (!spec.raw() && (spec.rotation == Rotation::kH1 || spec.rotation == Rotation::kH2) &&
        !HadamardOrderSupported(d)) {
      return Unsupported(
          fmt::format("layer {} has head_dim {}, and a Hadamard transform exists for powers of two times 1, 3, 5, 7 "
                      "and 9: add rot=none or rot=haar, or use a raw type (f16)",
                      layer, d));
    }
    const Family family = (side == Kv::kK ? spec.k : spec.v).family;
    if (const int block = RecordBlock(family, side); d % block != 0) {
      return Unsupported(fmt::format("layer {} has head_dim {}, and {} stores blocks of {}: use another codec", layer,
                                     d, RowOf(family).name, block));
    }
  }
  return {};
}

Result<std::unique_ptr<KvCache>> KvCache::Create(const CacheConfig& config) {
  TERSEKV_RETURN_IF_ERROR(CheckSupported(config.spec));
  if (config.layers.empty()) return InvalidArgument("a cache needs at least one layer");
  if (config.max_workers < 1 || config.max_workers > 1024) {
    return InvalidArgument(fmt::format("max_workers is {}: the range is 1 to 1024", config.max_workers));
  }
  for (size_t l = 0; l < config.layers.size(); ++l) {
    TERSEKV_RETURN_IF_ERROR(CheckShape(config.spec, config.layers[l], static_cast<int>(l)));
  }
  TERSEKV_RETURN_IF_ERROR(CheckLayerBits(config));
  TERSEKV_RETURN_IF_ERROR(CheckWindowsAndRollback(config));
  TERSEKV_RETURN_IF_ERROR(CheckStatistics(config));
  if (config.memory && config.byte_budget != 0 && config.byte_budget != config.memory->pool.budget()) {
    return InvalidArgument(fmt::format("byte_budget is {}, that of the shared memory is {}: leave it 0",
                                       config.byte_budget, config.memory->pool.budget()));
  }
  if (config.first_layer < 0) {
    return InvalidArgument(fmt::format("first_layer is {}: the least is 0", config.first_layer));
  }
  const CacheConfig whole = WithMemory(config);
  if (const size_t bytes = History::GivenStatisticsBytes(config); bytes > whole.memory->pool.available()) {
    return OutOfBudget(fmt::format("the KV budget of {} bytes is less than the {} bytes of the profile's statistics",
                                   whole.memory->pool.budget(), bytes));
  }
  return std::unique_ptr<KvCache>(std::make_unique<CpuKvCache>(whole));
}

std::shared_ptr<CacheMemory> MakeCacheMemory(size_t byte_budget) {
  return std::make_shared<CpuCacheMemory>(byte_budget);
}

void ReleaseScratch(CacheMemory* memory) { memory->ReleaseScratch(); }
size_t ScratchBytes(const CacheMemory& memory) { return memory.ScratchBytes(); }
bool ChargeMemory(CacheMemory* memory, size_t bytes) { return memory->pool.Charge(bytes); }
void RefundMemory(CacheMemory* memory, size_t bytes) { memory->pool.Refund(bytes); }

}  // namespace tersekv
