// SPDX-License-Identifier: Apache-2.0
// A sequence out of a cache and into one, as it lies there.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/cache/history.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

constexpr Kv kSides[] = {Kv::kK, Kv::kV};

std::span<const uint8_t> Bytes(const AlignedArray<uint16_t>& rows, size_t values) {
  return {reinterpret_cast<const uint8_t*>(rows.get()), values * sizeof(uint16_t)};
}

const std::vector<float>& Part(const Statistics::Layer& layer, int side, int part) {
  const Statistics::Side& s = side == 0 ? layer.k : layer.v;
  return part == 0 ? s.mean : part == 1 ? s.scale : s.inv_scale;
}

bool SameStatistics(const Statistics& stats, const SequenceState& state) {
  for (size_t l = 0; l < state.layers.size(); ++l) {
    for (int i = 0; i < 6; ++i) {
      const std::vector<float>& own = Part(stats.layers[l], i / 3, i % 3);
      const std::span<const float> given = state.layers[l].statistics[i / 3][i % 3];
      if (!std::equal(own.begin(), own.end(), given.begin(), given.end())) return false;
    }
  }
  return true;
}

bool HasStatistics(const SequenceState& state) {
  for (const SequenceState::Layer& layer : state.layers) {
    for (int i = 0; i < 6; ++i) {
      if (!layer.statistics[i / 3][i % 3].empty()) return true;
    }
  }
  return false;
}

Status Wrong(std::string what) { return InvalidArgument("this state is not of such a cache: " + std::move(what)); }

}  // namespace

int64_t SequenceState::tokens() const {
  return std::count_if(positions.begin(), positions.end(), [](int32_t stored) { return !IsRemoved(stored); });
}

Result<SequenceState> History::State(int32_t id) const {
  const Sequence* s = Find(id);
  if (s == nullptr || s->tokens() == 0) return NotFound(fmt::format("sequence {} is empty", id));
  SequenceState state;
  state.positions = s->positions;
  state.packed_end = s->packed_end;
  state.raw_begin = s->raw_begin;
  state.ring_capacity = s->ring_capacity;
  state.first_layer = config_.first_layer;
  for (size_t l = 0; l < s->layers.size(); ++l) {
    SequenceState::Layer& layer = state.layers.emplace_back();
    for (const PageRef& page : s->layers[l].pages) {
      layer.pages.push_back(page.held() ? std::span<const uint8_t>(page.data(), page.bytes())
                                        : std::span<const uint8_t>());
    }
    for (const Kv side : kSides) {
      const int i = static_cast<int>(side);
      const size_t width = RowWidth(config_.layers[l], side);
      if (!config_.spec.raw()) {
        layer.sinks[i] = Bytes(s->layers[l].sinks[i], static_cast<size_t>(config_.spec.sink) * width);
        layer.ring[i] = Bytes(s->layers[l].ring[i], static_cast<size_t>(s->ring_capacity) * width);
      }
      for (int part = 0; part < 3 && s->stats; ++part) {
        layer.statistics[i][part] = Part(s->stats->layers[l], i, part);
      }
    }
  }
  return state;
}

Status History::CheckState(const SequenceState& state) const {
  const int64_t length = static_cast<int64_t>(state.positions.size()), sink = config_.spec.sink;
  const int64_t page = config_.spec.page;
  if (length == 0 || IsRemoved(state.positions.back())) return Wrong("its last place holds no token");
  if (state.layers.size() != config_.layers.size()) {
    return Wrong(fmt::format("it has {} layers, the cache {}", state.layers.size(), config_.layers.size()));
  }
  if (state.first_layer != config_.first_layer) {
    return InvalidArgument(
        fmt::format("this state is of layers from {} on, the cache of layers from {} on: their rows "
                    "are rotated by other signs; restore it where it was made",
                    state.first_layer, config_.first_layer));
  }
  if (given_stats_ && !SameStatistics(*given_stats_, state)) {
    return InvalidArgument("this state was made with another profile, or with none: give the same profile");
  }
  int32_t before = -1;
  for (size_t i = 0; i < state.positions.size(); ++i) {
    const int32_t stored = state.positions[i], filler = std::max(before, 0);
    if (IsRemoved(stored)) {
      if (PositionOf(stored) == filler) continue;
      return Wrong(fmt::format("place {} holds no token and position {}, not {}, the one before it", i,
                               PositionOf(stored), filler));
    }
    if (stored <= before) return Wrong(fmt::format("position {} at place {} does not follow {}", stored, i, before));
    if (stored > kMaxPosition) return Wrong(fmt::format("position {} is above {}, the largest", stored, kMaxPosition));
    before = stored;
  }
  const int64_t most = RingCapacity(false, int64_t{1} << 40), raw = config_.spec.raw() ? 0 : length;
  if (state.packed_end < 0 || state.packed_end > length || (config_.spec.raw() && state.packed_end != length) ||
      state.raw_begin < 0 || state.raw_begin > std::max(state.packed_end, sink) || state.ring_capacity < 0 ||
      state.ring_capacity > most + kMaxRollback || raw - std::max(state.packed_end, sink) > state.ring_capacity) {
    return Wrong(fmt::format("of {} places {} are packed, rows of {} are kept from {} on", length, state.packed_end,
                             state.ring_capacity, state.raw_begin));
  }
  const int64_t packed = std::max<int64_t>(state.packed_end - sink, 0);
  if (whole_pages_ && packed % page != 0) return Wrong(fmt::format("{} tokens are no whole pages", packed));
  const size_t pages = static_cast<size_t>((packed + page - 1) / page);
  const bool packs = packed > 0 && !config_.spec.raw();
  const bool present = HasStatistics(state);  // all of them or none
  if (packs && parts_.any() && !present) return Wrong("it has no statistics for its packed tokens");
  for (size_t l = 0; l < state.layers.size(); ++l) {
    const SequenceState::Layer& layer = state.layers[l];
    if (layer.pages.size() != pages) {
      return Wrong(fmt::format("layer {} has {} pages, {} tokens take {}", l, layer.pages.size(), packed, pages));
    }
    bool held = false;
    for (const std::span<const uint8_t>& bytes : layer.pages) {
      const bool gone = bytes.empty() && !held && Window(l) > 0;
      held |= !bytes.empty();
      if (gone || bytes.size() == layouts_[l].page_bytes) continue;
      return Wrong(
          fmt::format("a page of layer {} has {} bytes, the cache's have {}", l, bytes.size(), layouts_[l].page_bytes));
    }
    for (const Kv side : kSides) {
      const int i = static_cast<int>(side);
      const size_t width = RowWidth(config_.layers[l], side), row = config_.spec.raw() ? 0 : width * sizeof(uint16_t);
      if (layer.sinks[i].size() != static_cast<size_t>(sink) * row ||
          layer.ring[i].size() != static_cast<size_t>(state.ring_capacity) * row) {
        return Wrong(fmt::format("layer {} has {} and {} bytes of raw rows, not {} rows of {}", l,
                                 layer.sinks[i].size(), layer.ring[i].size(), sink + state.ring_capacity, row));
      }
      for (int part = 0; part < 3; ++part) {
        const std::span<const float> values = layer.statistics[i][part];
        const bool wanted = present && (part == 0 ? parts_.mean : parts_.scale[i]);
        if (values.size() != (wanted ? width : 0)) {
          return Wrong(
              fmt::format("layer {} has {} values of a statistic, not {}", l, values.size(), wanted ? width : 0));
        }
        for (const float v : values) {
          if (!std::isfinite(v) || (part > 0 && !(v > 0))) return Wrong(fmt::format("layer {} has statistic {}", l, v));
        }
      }
    }
  }
  return {};
}

Status History::Restore(int32_t id, const SequenceState& state) {
  if (id < 0) return InvalidArgument(fmt::format("sequence id {} is negative", id));
  if (const Sequence* target = Find(id); target != nullptr && target->tokens() > 0) {
    return InvalidArgument(
        fmt::format("sequence {} holds {} tokens: remove it before restoring into it", id, target->tokens()));
  }
  TERSEKV_RETURN_IF_ERROR(CheckState(state));
  Remove(id);
  const bool measured = NeedsStatistics() && HasStatistics(state);
  Sequence s;
  s.positions.reserve(PositionCapacity(state.positions.size()));
  s.positions = state.positions;
  s.removed = s.length() - state.tokens();
  s.packed_end = state.packed_end;
  s.raw_begin = state.raw_begin;
  s.layers.resize(state.layers.size());
  size_t bytes = measured ? StatisticsBytes() : 0;
  const auto whole = static_cast<size_t>(std::max<int64_t>(s.packed_end - config_.spec.sink, 0) / config_.spec.page);
  for (size_t l = 0; l < state.layers.size(); ++l) {
    std::vector<PageRef>& pages = s.layers[l].pages;
    pages.reserve(RoundUp(state.layers[l].pages.size(), kPageBlock));
    for (const std::span<const uint8_t>& page : state.layers[l].pages) {
      pages.emplace_back();
      if (page.empty()) {
        ++s.layers[l].gone;
        continue;
      }
      Page* equal = config_.share_pages && pages.size() <= whole ? pool_.Equal(page) : nullptr;
      if (equal != nullptr) pages.back() = PageRef(&pool_, equal);
      bytes += equal == nullptr ? layouts_[l].page_bytes : 0;
    }
  }
  s.ring_capacity = state.ring_capacity;
  bytes += s.raw_bytes(config_) + s.table_bytes();
  if (bytes > pool_.available()) {
    return OutOfBudget(fmt::format("restoring {} tokens takes {} bytes, {} are free of the budget of {}",
                                   state.tokens(), bytes, pool_.available(), pool_.budget()));
  }
  AllocateRawRows(config_, state.ring_capacity, &s);
  if (measured) {
    const std::shared_ptr<Statistics> stats = NewStatistics();
    for (size_t l = 0; l < state.layers.size(); ++l) {
      for (int i = 0; i < 6; ++i) {
        const std::span<const float> from = state.layers[l].statistics[i / 3][i % 3];
        std::copy(from.begin(), from.end(),
                  const_cast<std::vector<float>&>(Part(stats->layers[l], i / 3, i % 3)).begin());
      }
    }
    s.stats = stats;
  } else {
    s.stats = given_stats_;
  }
  for (size_t l = 0; l < state.layers.size(); ++l) {
    const SequenceState::Layer& from = state.layers[l];
    for (int i = 0; i < 2; ++i) {
      std::copy(from.sinks[i].begin(), from.sinks[i].end(), reinterpret_cast<uint8_t*>(s.layers[l].sinks[i].get()));
      std::copy(from.ring[i].begin(), from.ring[i].end(), reinterpret_cast<uint8_t*>(s.layers[l].ring[i].get()));
    }
    for (size_t p = s.layers[l].gone; p < from.pages.size(); ++p) {
      PageRef& own = s.layers[l].pages[p];
      if (own.held()) continue;
      Page* page = pool_.Take(size_classes_[l]);
      TERSEKV_CHECK(page != nullptr);
      std::memcpy(page->data, from.pages[p].data(), from.pages[p].size());
      own = PageRef(&pool_, page);
    }
  }
  Sequence& stored = sequences_.emplace(id, std::move(s)).first->second;
  TERSEKV_CHECK(Recharge(&stored));
  SharePages(&stored, 0);
  return {};
}

}  // namespace tersekv
