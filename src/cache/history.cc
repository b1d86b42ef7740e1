// SPDX-License-Identifier: Apache-2.0
#include "src/cache/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/base/check.h"
#include "src/codec/record_list.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

// One side of a layer, from what a profile has of it. parts: what of it applies.
Statistics::Side GivenSide(const CacheConfig& config, const StatisticsParts& parts, Kv kv, int heads, int head_dim,
                           const std::vector<float>& mean, const std::vector<float>& scale,
                           const std::vector<float>& variance) {
  Statistics::Side side;
  if (parts.mean) side.mean = mean;
  if (!parts.scale[static_cast<int>(kv)]) return side;
  side.scale = config.spec.scale ? scale : std::vector<float>(mean.size(), 1.0f);
  side.inv_scale = side.scale;
  for (float& v : side.inv_scale) v = 1.0f / v;
  const SharedScale shared = SharedScaleOf(config.spec.k.family);
  if (shared == SharedScale::kNone) return side;
  const bool rotated = config.spec.rotation != Rotation::kNone;
  float largest = 0;
  std::vector<float> peaks;
  for (int h = 0; h < heads; ++h) {
    const size_t at = static_cast<size_t>(h) * static_cast<size_t>(head_dim);
    peaks.push_back(
        MomentPeak(parts.mean ? nullptr : &mean[at], &variance[at], &side.inv_scale[at], head_dim, rotated));
    largest = std::max(largest, peaks.back());
  }
  for (int h = 0; h < heads; ++h) {
    const size_t at = static_cast<size_t>(h) * static_cast<size_t>(head_dim);
    const float peak = shared == SharedScale::kTensor ? largest : peaks[static_cast<size_t>(h)];
    ApplySharedScale(SharedScaleOfPeak(peak), head_dim, &side.scale[at], &side.inv_scale[at]);
  }
  return side;
}

std::shared_ptr<const Statistics> GivenStatistics(const CacheConfig& config) {
  const StatisticsParts parts = PartsOf(config);
  if (config.statistics.empty() || !parts.any()) return nullptr;
  auto stats = std::make_shared<Statistics>();
  for (size_t l = 0; l < config.statistics.size(); ++l) {
    const LayerStats& s = config.statistics[l];
    const LayerShape& shape = config.layers[l];
    stats->layers.push_back(
        {GivenSide(config, parts, Kv::kK, shape.kv_heads, shape.head_dim_k, s.k_mean, s.k_scale, s.k_variance),
         shape.latent
             ? Statistics::Side()
             : GivenSide(config, parts, Kv::kV, shape.kv_heads, shape.head_dim_v, s.v_mean, s.v_scale, s.v_variance)});
  }
  return stats;
}

}  // namespace

History::History(CacheConfig config, std::unique_ptr<const Encoder> encoder)
    : config_(std::move(config)), encoder_(std::move(encoder)), memory_(config_.memory), pool_(memory_->pool) {
  int largest = 0;
  size_t encode_floats = 0;
  whole_pages_ = PacksWholePages(config_);
  parts_ = PartsOf(config_);
  measures_ = MeasuresStatistics(config_);
  given_stats_ = GivenStatistics(config_);
  config_.statistics = {};
  if (given_stats_) TERSEKV_CHECK(pool_.Charge(given_stats_->bytes()));
  std::map<int, std::shared_ptr<const std::vector<float>>> haar;
  for (size_t l = 0; l < config_.layers.size(); ++l) {
    const LayerShape& shape = config_.layers[l];
    layouts_.push_back(PageLayout::Make(LayerSpec(config_, l), shape));
    size_classes_.push_back(pool_.SizeClass(layouts_.back().page_bytes));
    auto& sides = rotations_.emplace_back();
    for (const Kv side : {Kv::kK, Kv::kV}) {
      SideLayout& layout = side == Kv::kK ? layouts_.back().k : layouts_.back().v;
      const int d = layout.d;
      largest = std::max(largest, d);
      if (layout.family == Family::kProd) {
        auto& projection = projections_[d];
        if (!projection) projection = ProjectionOf(config_.spec, d);
        layout.record.projection = projection.get();
      }
      encode_floats = std::max(encode_floats, RecordScratchFloats(layout.family, side, layout.record));
      const bool plain = config_.spec.raw() || (side == Kv::kV && config_.values_rotated);
      const RotationKind kind = plain ? RotationKind::kNone : RotationKindOf(config_.spec.rotation);
      if (kind == RotationKind::kHaar && !haar.contains(d)) haar[d] = HaarMatrix(config_.spec.seed, d);
      for (int h = 0; h < shape.kv_heads; ++h) {
        sides[static_cast<size_t>(side)].emplace_back(kind, config_.spec.seed,
                                                      config_.first_layer + static_cast<int>(l), h, side == Kv::kV, d,
                                                      kind == RotationKind::kHaar ? haar[d] : nullptr);
      }
    }
  }
  for (const LayerShape& shape : config_.layers) {
    written_at_.push_back(written_.size());
    written_.resize(written_.size() + 2 * static_cast<size_t>(shape.kv_heads));
  }
  if (!config_.spec.raw()) {
    const size_t rows = static_cast<size_t>(std::max(config_.spec.page, kStatsTokens));
    needed_ = {rows * static_cast<size_t>(largest), std::max(encoder_->ScratchFloats(largest), encode_floats),
               rows * static_cast<size_t>(largest), rows, static_cast<size_t>(largest)};
  }
  ReserveScratch(0);
}

History::~History() {
  for (auto& [id, sequence] : sequences_) pool_.Refund(sequence.charged);
  if (given_stats_) pool_.Refund(given_stats_->bytes());
}

// Scratch for a step of so many rows.
void History::ReserveScratch(size_t rows) {
  std::vector<EncodeScratch>& workers = memory_->workers;
  if (workers.size() < static_cast<size_t>(config_.max_workers))
    workers.resize(static_cast<size_t>(config_.max_workers));
  for (EncodeScratch& scratch : workers) scratch.Reserve(needed_);
  if (memory_->step.size() < config_.layers.size()) memory_->step.resize(config_.layers.size());
  for (size_t l = 0; !config_.spec.raw() && l < config_.layers.size(); ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      memory_->step[l][static_cast<size_t>(side)].Reserve(RoundUp(rows, 16) * RowWidth(config_.layers[l], side));
    }
  }
}

size_t History::GivenStatisticsBytes(const CacheConfig& config) {
  const std::shared_ptr<const Statistics> stats = GivenStatistics(config);
  return stats ? stats->bytes() : 0;
}

const Sequence* History::Find(int32_t id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

HeadCodec History::CodecOf(int layer, Kv side, int kv_head, const Statistics* stats) const {
  const SideLayout& layout = layouts_[static_cast<size_t>(layer)].side(side);
  HeadCodec codec;
  codec.family = layout.family;
  codec.side = side;
  codec.record = layout.record;
  codec.d = layout.d;
  codec.bits = layout.bits;
  codec.norm = (side == Kv::kK ? config_.spec.k : config_.spec.v).norm;
  codec.rotation = &rotation(layer, side, kv_head);
  codec.sqrt_d = std::sqrt(static_cast<float>(layout.d));
  if (stats != nullptr) {
    const Statistics::Layer& l = stats->layers[static_cast<size_t>(layer)];
    const Statistics::Side& s = side == Kv::kK ? l.k : l.v;
    const size_t at = static_cast<size_t>(kv_head) * static_cast<size_t>(layout.d);
    codec.mean = s.mean.empty() ? nullptr : s.mean.data() + at;
    codec.scale = s.scale.empty() ? nullptr : s.scale.data() + at;
    codec.inv_scale = s.inv_scale.empty() ? nullptr : s.inv_scale.data() + at;
  }
  return codec;
}

RawRows History::RawRowsOf(int layer, Kv side, const StepSequence& part) const {
  const size_t l = static_cast<size_t>(layer);
  const int s = static_cast<int>(side);
  const SequenceLayer& stored = part.sequence->layers[l];
  RawRows raw;
  raw.width = RowWidth(config_.layers[l], side);
  raw.sinks = stored.sinks[s].get();
  raw.ring = stored.ring[s].get();
  raw.step = memory_->step[l][static_cast<size_t>(s)].values.get() + part.first_slot * raw.width;
  raw.step_begin = part.begin;
  raw.sink_count = config_.spec.sink;
  raw.ring_capacity = part.sequence->ring_capacity;
  return raw;
}

LayerView History::View(int layer, const StepSequence& part) const {
  LayerView view;
  view.layout = &layouts_[static_cast<size_t>(layer)];
  view.pages = part.sequence->layers[static_cast<size_t>(layer)].pages.data();
  if (!config_.spec.raw()) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      view.raw[static_cast<int>(side)] = RawRowsOf(layer, view.layout->latent ? Kv::kK : side, part);
    }
  }
  if (const Statistics* stats = part.stats()) view.stats = &stats->layers[static_cast<size_t>(layer)];
  view.positions = part.sequence->positions.data();
  view.sink = config_.spec.sink;
  view.removed = part.sequence->removed > 0;
  return view;
}

// Of the pages of all sequences; a shared one counts once, and each further time as saved.
size_t History::PageBytes(size_t* saved) const {
  std::set<const uint8_t*> counted;
  size_t bytes = 0;
  for (const auto& [id, sequence] : sequences_) {
    for (size_t l = 0; l < sequence.layers.size(); ++l) {
      for (const PageRef& page : sequence.layers[l].pages) {
        if (!page.held()) continue;
        const bool first = !page.shared() || counted.insert(page.data()).second;
        (first ? bytes : *saved) += layouts_[l].page_bytes;
      }
    }
  }
  return bytes;
}

CacheUsage History::Usage() const {
  CacheUsage usage;
  std::set<const Statistics*> counted = {given_stats_.get()};
  if (given_stats_) usage.stats = given_stats_->bytes();
  size_t f16_token = 0, values = 0;
  for (const LayerShape& shape : config_.layers) {
    f16_token += 2 * (RowWidth(shape, Kv::kK) + RowWidth(shape, Kv::kV));
  }
  for (const auto& [id, sequence] : sequences_) {
    usage.raw_rows += sequence.raw_bytes(config_);
    usage.tables += sequence.table_bytes();
    if (sequence.stats && counted.insert(sequence.stats.get()).second) usage.stats += sequence.stats->bytes();
    usage.tokens += sequence.tokens();
    usage.tokens_packed += std::max<int64_t>(sequence.packed_end - config_.spec.sink, 0);
    for (int64_t order = config_.spec.sink; sequence.removed > 0 && order < sequence.packed_end; ++order) {
      usage.tokens_packed -= IsRemoved(sequence.positions[static_cast<size_t>(order)]) ? 1 : 0;
    }
  }
  usage.pages = PageBytes(&usage.saved);
  usage.bytes_used = usage.pages + usage.raw_rows + usage.stats + usage.tables;
  usage.bytes_reserved = pool_.bytes_reserved();
  usage.scratch = memory_->ScratchBytes();
  usage.bytes_f16 = f16_token * static_cast<size_t>(usage.tokens);
  values = usage.bytes_f16 / 2;
  usage.bits_effective = values == 0 ? 0.0 : static_cast<double>(usage.bytes_used) * 8.0 / static_cast<double>(values);
  return usage;
}

}  // namespace tersekv
