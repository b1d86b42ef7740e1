// SPDX-License-Identifier: Apache-2.0
// Shifting the positions of tokens: keys were turned by their position (RoPE), so they are turned on.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/base/half.h"
#include "src/base/thread_pool.h"
#include "src/cache/history.h"
#include "src/cache/unpack.h"

namespace tersekv {
namespace {

constexpr float kLargestF16 = 65504;

// key: [head_dim]; turns: [pairs, 2] cosine and sine.
void Turn(const KeyRotation& rotation, const float* turns, float* key) {
  const size_t pairs = rotation.frequency.size();
  float* first = key + rotation.first_channel;
  const size_t step = rotation.interleaved ? 2 : 1, apart = rotation.interleaved ? 1 : pairs;
  for (size_t i = 0; i < pairs; ++i) {
    float* a = first + i * step;
    const float x = a[0], y = a[apart];
    a[0] = x * turns[2 * i] - y * turns[2 * i + 1];
    a[apart] = x * turns[2 * i + 1] + y * turns[2 * i];
  }
}

void TurnRawRow(const KeyRotation& rotation, const float* turns, size_t d, uint16_t* row, float* key) {
  for (size_t c = 0; c < d; ++c) key[c] = F16ToF32(row[c]);
  Turn(rotation, turns, key);
  for (size_t c = 0; c < d; ++c) row[c] = F32ToF16(std::clamp(key[c], -kLargestF16, kLargestF16));
}

}  // namespace

// Pages with tokens [begin, end) become the sequence's own.
Status History::OwnPages(Sequence* s, int64_t begin, int64_t end) {
  const int64_t sink = config_.spec.sink, page = config_.spec.page;
  begin = std::max(begin, sink) - sink;
  end = std::min(end, s->packed_end) - sink;
  if (begin >= end) return {};
  const size_t first = static_cast<size_t>(begin / page), last = static_cast<size_t>((end + page - 1) / page);
  size_t bytes = 0;
  const auto copied = [](const PageRef& ref) { return ref.held() && ref.shared(); };
  for (const SequenceLayer& layer : s->layers) {
    for (size_t p = first; p < last; ++p) bytes += copied(layer.pages[p]) ? layer.pages[p].bytes() : 0;
  }
  if (bytes > pool_.available()) {
    return OutOfBudget(
        fmt::format("the pages to shift are shared: their copies take {} bytes, {} are free of the "
                    "budget of {}",
                    bytes, pool_.available(), pool_.budget()));
  }
  for (size_t l = 0; l < s->layers.size(); ++l) {
    for (size_t p = first; p < last; ++p) {
      PageRef& ref = s->layers[l].pages[p];
      if (!copied(ref)) continue;
      Page* copy = pool_.Take(size_classes_[l]);
      TERSEKV_CHECK(copy != nullptr);
      std::memcpy(copy->data, ref.data(), copy->bytes);
      ref = PageRef(&pool_, copy);
    }
  }
  return {};
}

// Keys of tokens [begin, end) of one head, packed and raw. False: one cannot be encoded.
bool History::TurnKeys(int layer, int head, int64_t begin, int64_t end, const float* turns, const KeyRotation& rotation,
                       Sequence* s, EncodeScratch* scratch) {
  const size_t l = static_cast<size_t>(layer);
  const SideLayout& side = layouts_[l].k;
  const PageLayout& layout = layouts_[l];
  const size_t d = static_cast<size_t>(layout.head_dim_k()), width = RowWidth(config_.layers[l], Kv::kK);
  const size_t rotary_at = static_cast<size_t>(side.d);
  std::vector<uint16_t> rotary(static_cast<size_t>(layout.rotary));
  const int64_t sink = config_.spec.sink, page = config_.spec.page;
  HeadCodec codec = config_.spec.raw() ? HeadCodec() : CodecOf(layer, Kv::kK, head, s->stats.get());
  std::vector<float> key(3 * d);
  const int64_t packed_end = std::min(end, s->packed_end);
  for (int64_t order = std::max(begin, sink); order < packed_end;) {
    const size_t p = static_cast<size_t>((order - sink) / page);
    const int64_t slot = (order - sink) % page, behind = std::min(page, slot + packed_end - order);
    order += behind - slot;
    if (!s->layers[l].pages[p].held()) continue;
    uint8_t* unit = s->layers[l].pages[p].data() + static_cast<size_t>(head) * layouts_[l].unit_bytes;
    const int64_t from = side.whole_pages() ? 0 : slot, to = side.whole_pages() ? page : behind;
    for (int64_t t = slot; t < behind && layout.rotary > 0; ++t) {  // the latent does not turn
      UnpackRotary(layout, unit, static_cast<int>(t), rotary.data());
      for (size_t c = 0; c < rotary.size(); ++c) key[rotary_at + c] = F16ToF32(rotary[c]);
      Turn(rotation, turns, key.data());
      for (size_t c = 0; c < rotary.size(); ++c) {
        rotary[c] = F32ToF16(std::clamp(key[rotary_at + c], -kLargestF16, kLargestF16));
      }
      PackRotary(layout, unit, static_cast<int>(t), rotary.data());
    }
    if (layout.rotary > 0) continue;
    for (int64_t t = from; t < to; ++t) {
      const bool turned = t >= slot && t < behind;
      if (side.raw()) {
        UnpackRawToken(side, unit, static_cast<int>(t), key.data());
        Turn(rotation, turns, key.data());
        const float limit = OverflowsAt(side.family);
        for (size_t c = 0; c < d; ++c) {
          if (!(std::fabs(key[c]) < limit)) return false;
        }
        PackRawToken(side, unit, static_cast<int>(t), key.data());
        continue;
      }
      UnpackRow(side, codec, *encoder_, unit, static_cast<size_t>(t), key.data());
      if (turned) Turn(rotation, turns, key.data());
      std::copy_n(key.data(), d, scratch->rows.data() + static_cast<size_t>(t - from) * d);
    }
    if (side.raw()) continue;
    const size_t n = static_cast<size_t>(to - from);
    if (side.page_mean) {
      MeasurePageMean(codec, scratch->rows.data(), n, unit + side.mean_offset);
      ReadPageMean(side, unit, scratch->page_mean.data());
      codec.page_mean = scratch->page_mean.data();
    }
    if (!PackRows(side, codec, n, unit, from, scratch)) return false;
  }
  if (config_.spec.raw()) return true;
  const size_t at = static_cast<size_t>(head) * d;
  for (int64_t order = begin; order < std::min(end, sink); ++order) {
    uint16_t* row = s->layers[l].sinks[0].get() + static_cast<size_t>(order) * width;
    TurnRawRow(rotation, turns, d, row + at, key.data());
  }
  for (int64_t order = std::max(begin, s->FirstRaw(sink)); order < end; ++order) {
    uint16_t* row = s->layers[l].ring[0].get() + static_cast<size_t>(order % s->ring_capacity) * width;
    TurnRawRow(rotation, turns, d, row + at, key.data());
  }
  return true;
}

Status History::Shift(int32_t id, int64_t begin, int64_t end, int64_t delta, std::span<const KeyRotation> rotations) {
  if (!rotations.empty() && rotations.size() != 1 && rotations.size() != config_.layers.size()) {
    return InvalidArgument(fmt::format("{} rotations for {} layers: give one, one a layer, or none", rotations.size(),
                                       config_.layers.size()));
  }
  for (size_t i = 0; i < rotations.size(); ++i) {
    const int64_t channels = rotations[i].first_channel + 2 * static_cast<int64_t>(rotations[i].frequency.size());
    for (size_t l = 0; l < config_.layers.size(); ++l) {
      if (rotations.size() > 1 && l != i) continue;
      const LayerShape& shape = config_.layers[l];
      if (shape.latent && !rotations[i].frequency.empty() && rotations[i].first_channel < shape.head_dim_v) {
        return InvalidArgument(
            fmt::format("the rotation turns channels from {} on, those of layer {} turn from {} on, behind its latent",
                        rotations[i].first_channel, l, shape.head_dim_v));
      }
      if (rotations[i].first_channel >= 0 && channels <= shape.head_dim_k) continue;
      return InvalidArgument(fmt::format("the rotation turns channels {} to {}, keys of layer {} have {}",
                                         rotations[i].first_channel, channels, l, shape.head_dim_k));
    }
  }
  if (Find(id) == nullptr || delta == 0) return {};
  begin = std::max<int64_t>(begin, 0);
  const Sequence& before = *Find(id);
  const int64_t kept = std::max(begin, -delta);  // those before it would come below 0
  int64_t first = before.OrderOf(kept), last = end < 0 ? before.length() : before.OrderOf(end);
  const auto next_token = [&before](int64_t order) {
    while (order < before.length() && IsRemoved(before.positions[static_cast<size_t>(order)])) ++order;
    return order;
  };
  first = next_token(first);
  if (first < last) {
    const int64_t lowest = before.positions[static_cast<size_t>(first)] + delta;
    const int64_t highest = PositionOf(before.positions[static_cast<size_t>(last - 1)]) + delta;
    int64_t left = before.OrderOf(begin);
    while (left > 0 && IsRemoved(before.positions[static_cast<size_t>(left - 1)])) --left;
    const int64_t right = next_token(last);
    const bool above = left == 0 || before.positions[static_cast<size_t>(left - 1)] < lowest;
    const bool below = right == before.length() || before.positions[static_cast<size_t>(right)] > highest;
    if (!above || !below || highest > kMaxPosition) {
      return InvalidArgument(fmt::format(
          "positions {} to {} of sequence {} cannot move by {}: tokens of positions {} to {} would no longer "
          "follow what is before them and precede what is behind them; remove the range between first",
          lowest - delta, highest - delta, id, delta, lowest, highest));
    }
    const int64_t newest = right == before.length() ? highest : before.positions.back();
    TERSEKV_RETURN_IF_ERROR(CheckWindows(before, newest, first, last, delta));
  }
  const auto rotation_of = [&](size_t l) -> const KeyRotation* {
    if (rotations.empty()) return nullptr;
    const KeyRotation& rotation = rotations[rotations.size() == 1 ? 0 : l];
    return rotation.frequency.empty() ? nullptr : &rotation;
  };
  bool turns_any = false;
  for (size_t l = 0; l < config_.layers.size(); ++l) turns_any |= rotation_of(l) != nullptr;
  if (turns_any && first < last) {
    Sequence& s = sequences_.find(id)->second;
    TERSEKV_RETURN_IF_ERROR(OwnPages(&s, first, last));
  }
  if (kept > begin) {  // what comes below 0 goes
    TERSEKV_RETURN_IF_ERROR(RemoveRange(id, begin, end < 0 ? kept : std::min(kept, end)));
    if (Find(id) == nullptr) return {};
  }
  Sequence& s = sequences_.find(id)->second;
  first = s.OrderOf(kept);
  last = end < 0 ? s.length() : s.OrderOf(end);
  if (first >= last) return {};
  if (turns_any) {
    ReserveScratch(0);
    std::atomic<bool> finite = true;
    ThreadPool pool(config_.max_workers);
    pool.Run([&](int worker, int workers) {
      std::vector<float> turns;
      int task = 0;
      for (size_t l = 0; l < config_.layers.size(); ++l) {
        const KeyRotation* rotation = rotation_of(l);
        if (rotation == nullptr) continue;
        turns.clear();
        for (const double frequency : rotation->frequency) {
          turns.push_back(static_cast<float>(std::cos(frequency * static_cast<double>(delta))));
          turns.push_back(static_cast<float>(std::sin(frequency * static_cast<double>(delta))));
        }
        for (int h = 0; h < config_.layers[l].kv_heads; ++h) {
          if (task++ % workers != worker) continue;
          EncodeScratch* scratch = &memory_->workers[static_cast<size_t>(worker)];
          if (!TurnKeys(static_cast<int>(l), h, first, last, turns.data(), *rotation, &s, scratch)) finite = false;
        }
      }
    });
    if (!finite) {
      Remove(id);
      return DataLoss(
          fmt::format("a key of sequence {} is too large for its type once it is turned: the sequence was "
                      "removed; run its tokens again",
                      id));
    }
  }
  int32_t filler = first > 0 ? PositionOf(s.positions[static_cast<size_t>(first - 1)]) : 0;
  for (int64_t order = first; order < s.length(); ++order) {
    int32_t& stored = s.positions[static_cast<size_t>(order)];
    if (IsRemoved(stored)) {
      stored = ~filler;
    } else {
      if (order < last) stored = static_cast<int32_t>(stored + delta);
      filler = stored;
    }
  }
  return {};
}

}  // namespace tersekv
