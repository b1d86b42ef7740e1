// SPDX-License-Identifier: Apache-2.0
#include "src/cache/sequence.h"

#include <algorithm>
#include <cstring>

#include "src/codec/page_layout.h"

namespace tersekv {
namespace {

constexpr Kv kSides[] = {Kv::kK, Kv::kV};

AlignedArray<uint16_t> CopyOf(const AlignedArray<uint16_t>& from, size_t values) {
  AlignedArray<uint16_t> to = MakeAligned<uint16_t>(values);
  if (values > 0) std::memcpy(to.get(), from.get(), values * sizeof(uint16_t));
  return to;
}

}  // namespace

StatisticsParts PartsOf(const CacheConfig& config) {
  const KvSpec& spec = config.spec;
  const bool shared = SharedScaleOf(spec.k.family) != SharedScale::kNone, given = !config.statistics.empty();
  return {.mean = spec.mean == MeanMode::kStats || spec.mean == MeanMode::kProfile || spec.scale,
          .scale = {spec.scale || shared, (spec.scale && given) || shared}};
}

bool MeasuresStatistics(const CacheConfig& config) { return PartsOf(config).any() && config.statistics.empty(); }

bool PacksWholePages(const CacheConfig& config) {
  return !config.layers.empty() && PageLayout::Make(config.spec, config.layers[0]).whole_pages();
}

size_t Statistics::bytes() const {
  size_t floats = 0;
  for (const Layer& layer : layers) {
    for (const Side* side : {&layer.k, &layer.v}) {
      floats += side->mean.capacity() + side->scale.capacity() + side->inv_scale.capacity();
    }
  }
  return floats * sizeof(float) + layers.capacity() * sizeof(Layer);
}

size_t Sequence::raw_bytes(const CacheConfig& config) const {
  size_t bytes = 0;
  if (layers.empty() || config.spec.raw()) return 0;
  for (const LayerShape& shape : config.layers) {
    for (const Kv side : kSides) {
      bytes += static_cast<size_t>(config.spec.sink + ring_capacity) * RowWidth(shape, side) * sizeof(uint16_t);
    }
  }
  return bytes;
}

int64_t Sequence::OrderOf(int64_t position) const {
  const auto at = std::lower_bound(positions.begin(), positions.end(), position,
                                   [](int32_t stored, int64_t p) { return PositionOf(stored) < p; });
  return at - positions.begin();
}

int64_t Sequence::FirstRaw(int64_t sink) const { return std::max({raw_begin, length() - ring_capacity, sink}); }

size_t Sequence::table_bytes() const {
  size_t bytes = positions.capacity() * sizeof(int32_t) + layers.capacity() * sizeof(SequenceLayer);
  for (const SequenceLayer& layer : layers) {
    bytes += layer.pages.capacity() * sizeof(PageRef) + (layer.pages.size() - layer.gone) * sizeof(Page);
  }
  return bytes;
}

void AllocateRawRows(const CacheConfig& config, int64_t ring_capacity, Sequence* sequence) {
  sequence->layers.resize(config.layers.size());
  sequence->ring_capacity = ring_capacity;
  if (config.spec.raw()) return;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    for (const Kv side : kSides) {
      const size_t width = RowWidth(config.layers[l], side);
      const int s = static_cast<int>(side);
      sequence->layers[l].sinks[s] = MakeAligned<uint16_t>(static_cast<size_t>(config.spec.sink) * width);
      sequence->layers[l].ring[s] = MakeAligned<uint16_t>(static_cast<size_t>(ring_capacity) * width);
    }
  }
}

void ResizeRing(const CacheConfig& config, int64_t ring_capacity, Sequence* sequence) {
  const int64_t end = sequence->length();
  const int64_t old_capacity = sequence->ring_capacity;
  const int64_t first = std::max<int64_t>(end - std::min(old_capacity, ring_capacity), 0);
  for (size_t l = 0; l < config.layers.size(); ++l) {
    for (const Kv side : kSides) {
      const size_t width = RowWidth(config.layers[l], side);
      if (width == 0) continue;  // a latent layer's V
      AlignedArray<uint16_t>& ring = sequence->layers[l].ring[static_cast<int>(side)];
      AlignedArray<uint16_t> next = MakeAligned<uint16_t>(static_cast<size_t>(ring_capacity) * width);
      for (int64_t order = first; order < end; ++order) {
        std::memcpy(next.get() + static_cast<size_t>(order % ring_capacity) * width,
                    ring.get() + static_cast<size_t>(order % old_capacity) * width, width * sizeof(uint16_t));
      }
      ring = std::move(next);
    }
  }
  sequence->ring_capacity = ring_capacity;
  sequence->raw_begin = std::max(sequence->raw_begin, std::min(first, sequence->packed_end));
}

void CompactRawRows(const CacheConfig& config, int64_t begin, int64_t end, Sequence* sequence) {
  const int64_t length = sequence->length();
  for (size_t l = 0; l < config.layers.size() && !config.spec.raw(); ++l) {
    for (const Kv side : kSides) {
      const size_t width = RowWidth(config.layers[l], side);
      if (width == 0) continue;  // a latent layer's V
      SequenceLayer& layer = sequence->layers[l];
      const int s = static_cast<int>(side);
      const auto row = [&](int64_t order) {
        return order < config.spec.sink
                   ? layer.sinks[s].get() + static_cast<size_t>(order) * width
                   : layer.ring[s].get() + static_cast<size_t>(order % sequence->ring_capacity) * width;
      };
      for (int64_t from = end, to = begin; from < length; ++from, ++to) {
        std::memcpy(row(to), row(from), width * sizeof(uint16_t));
      }
    }
  }
  const auto at = sequence->positions.begin();
  sequence->removed -= std::count_if(at + begin, at + end, IsRemoved);
  sequence->positions.erase(at + begin, at + end);
}

Sequence CloneSequence(const CacheConfig& config, const Sequence& from) {
  Sequence to;
  to.positions.reserve(from.positions.capacity());
  to.positions = from.positions;
  to.removed = from.removed;
  to.packed_end = from.packed_end;
  to.raw_begin = from.raw_begin;
  to.ring_capacity = from.ring_capacity;
  to.stats = from.stats;
  to.layers.resize(from.layers.size());
  for (size_t l = 0; l < from.layers.size(); ++l) {
    to.layers[l].pages.reserve(from.layers[l].pages.capacity());
    for (const PageRef& page : from.layers[l].pages) to.layers[l].pages.push_back(page.Share());
    to.layers[l].gone = from.layers[l].gone;
    if (config.spec.raw()) continue;
    for (const Kv side : kSides) {
      const size_t width = RowWidth(config.layers[l], side);
      if (width == 0) continue;  // a latent layer's V
      const int s = static_cast<int>(side);
      to.layers[l].sinks[s] = CopyOf(from.layers[l].sinks[s], static_cast<size_t>(config.spec.sink) * width);
      to.layers[l].ring[s] = CopyOf(from.layers[l].ring[s], static_cast<size_t>(from.ring_capacity) * width);
    }
  }
  return to;
}

}  // namespace tersekv
