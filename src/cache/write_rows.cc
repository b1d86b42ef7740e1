// SPDX-License-Identifier: Apache-2.0
// Rows of the running step: kept as f16, measured once a sequence, packed as they leave the window.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/half.h"
#include "src/cache/history.h"
#include "src/cache/unpack.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

constexpr uint32_t kPosition = 1u << 31;  // of a failure: the rest is a position, not a row of the step

}  // namespace

void History::WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) {
  const size_t l = static_cast<size_t>(layer);
  const int heads = config_.layers[l].kv_heads;
  const bool latent = config_.layers[l].latent;
  if (latent && side == Kv::kV) return;  // a part of K
  EncodeScratch* scratch = &memory_->workers[static_cast<size_t>(worker)];
  const auto measured = [](const StepSequence& part) { return part.new_stats != nullptr; };
  if (SharedScaleOf(config_.spec.k.family) == SharedScale::kTensor &&
      std::any_of(step_.begin(), step_.end(), measured)) {
    if (worker == 0) WriteMeasured(layer, side, rows, row_stride, scratch);
    return;
  }
  for (int head = worker; head < heads; head += workers) {
    for (const StepSequence& part : step_) {
      if (config_.spec.raw()) {
        StoreRawPages(layer, side, head, rows, row_stride, part);
        continue;
      }
      StoreStepRows(layer, side, head, rows, row_stride, part);
      if (failure_ >= 0) continue;
      if (part.new_stats) {
        Measure(layer, side, head, part, scratch);
        if (SharedScaleOf(config_.spec.k.family) == SharedScale::kHead) {
          ShareScale(layer, side, head, part, MeasurePeak(layer, side, head, part, scratch));
        }
      }
      Pack(layer, side, head, part, scratch);
    }
    written_[written_at_[l] + static_cast<size_t>(2 * head) + static_cast<size_t>(side)] = 1;
    if (latent) written_[written_at_[l] + static_cast<size_t>(2 * head + 1)] = 1;
  }
}

// A step in which sequences measure one scale for all heads, once in the life of each: one worker does everything.
void History::WriteMeasured(int layer, Kv side, const float* rows, ptrdiff_t stride, EncodeScratch* scratch) {
  const size_t l = static_cast<size_t>(layer);
  const int heads = config_.layers[l].kv_heads;
  for (const StepSequence& part : step_) {
    for (int head = 0; head < heads; ++head) StoreStepRows(layer, side, head, rows, stride, part);
    if (failure_ >= 0) break;
    float peak = 0;
    for (int head = 0; head < heads && part.new_stats; ++head) {
      Measure(layer, side, head, part, scratch);
      peak = std::max(peak, MeasurePeak(layer, side, head, part, scratch));
    }
    for (int head = 0; head < heads && part.new_stats; ++head) ShareScale(layer, side, head, part, peak);
    for (int head = 0; head < heads; ++head) Pack(layer, side, head, part, scratch);
  }
  for (int head = 0; head < heads; ++head) {
    written_[written_at_[l] + static_cast<size_t>(2 * head) + static_cast<size_t>(side)] = 1;
  }
}

void History::StoreRawPages(int layer, Kv side, int head, const float* rows, ptrdiff_t stride,
                            const StepSequence& part) {
  const PageLayout& layout = layouts_[static_cast<size_t>(layer)];
  const SideLayout& s = layout.side(side);
  const float limit = OverflowsAt(s.family);
  const std::vector<PageRef>& pages = part.sequence->layers[static_cast<size_t>(layer)].pages;
  for (const StepQuery& query : part.queries) {
    const float* row = reinterpret_cast<const float*>(reinterpret_cast<const char*>(rows) + query.row * stride) +
                       static_cast<ptrdiff_t>(head) * s.d;
    for (int c = 0; c < s.d; ++c) {
      if (!(std::fabs(row[c]) < limit)) return Fail(layer, side, head, static_cast<size_t>(query.row));
    }
    uint8_t* unit = pages[static_cast<size_t>(query.order / layout.page_tokens)].data() +
                    static_cast<size_t>(head) * layout.unit_bytes;
    PackRawToken(s, unit, static_cast<int>(query.order % layout.page_tokens), row);
  }
}

void History::StoreStepRows(int layer, Kv side, int head, const float* rows, ptrdiff_t stride,
                            const StepSequence& part) {
  const size_t l = static_cast<size_t>(layer);
  const size_t width = RowWidth(config_.layers[l], side);
  const int d = static_cast<int>(width) / config_.layers[l].kv_heads;
  uint16_t* out = memory_->step[l][static_cast<size_t>(side)].values.get() + part.first_slot * width +
                  static_cast<size_t>(head) * static_cast<size_t>(d);
  for (size_t t = 0; t < part.queries.size(); ++t) {
    const float* row =
        reinterpret_cast<const float*>(reinterpret_cast<const char*>(rows) + part.queries[t].row * stride) +
        static_cast<ptrdiff_t>(head) * d;
    bool finite = true;
    for (int c = 0; c < d; ++c) {
      const uint16_t half = F32ToF16(row[c]);
      finite &= (half & 0x7c00u) != 0x7c00u;
      out[t * width + static_cast<size_t>(c)] = half;
    }
    if (!finite) return Fail(layer, side, head, static_cast<size_t>(part.queries[t].row));
  }
}

void History::GatherRows(const RawRows& raw, int head, int d, int64_t begin, int64_t end, float* out) const {
  for (int64_t order = begin; order < end; ++order) {
    const uint16_t* row = raw.Row(order) + static_cast<ptrdiff_t>(head) * d;
    for (int c = 0; c < d; ++c) *out++ = F16ToF32(row[c]);
  }
}

void History::Measure(int layer, Kv side, int head, const StepSequence& part, EncodeScratch* scratch) {
  const int d = layouts_[static_cast<size_t>(layer)].side(side).d;
  const int64_t first = config_.spec.sink;
  GatherRows(RawRowsOf(layer, side, part), head, d, first, first + kStatsTokens, scratch->rows.data());
  Statistics::Layer& stats = part.new_stats->layers[static_cast<size_t>(layer)];
  Statistics::Side& s = side == Kv::kK ? stats.k : stats.v;
  const size_t at = static_cast<size_t>(head) * static_cast<size_t>(d);
  if (parts_.mean) RowMean(scratch->rows.data(), kStatsTokens, d, s.mean.data() + at);
  if (side == Kv::kV || !config_.spec.scale) return;
  RowScale(scratch->rows.data(), kStatsTokens, d, s.mean.data() + at, s.scale.data() + at, s.inv_scale.data() + at);
}

// Of the rows that Measure has left in the scratch.
float History::MeasurePeak(int layer, Kv side, int head, const StepSequence& part, EncodeScratch* scratch) const {
  const HeadCodec codec = CodecOf(layer, side, head, part.new_stats.get());
  float* row = scratch->encode.data();
  return RowPeak(codec, scratch->rows.data(), kStatsTokens, row, row + codec.d);
}

void History::ShareScale(int layer, Kv side, int head, const StepSequence& part, float peak) const {
  const int d = layouts_[static_cast<size_t>(layer)].side(side).d;
  Statistics::Layer& stats = part.new_stats->layers[static_cast<size_t>(layer)];
  Statistics::Side& s = side == Kv::kK ? stats.k : stats.v;
  const size_t at = static_cast<size_t>(head) * static_cast<size_t>(d);
  ApplySharedScale(SharedScaleOfPeak(peak), d, s.scale.data() + at, s.inv_scale.data() + at);
}

void History::Pack(int layer, Kv side, int head, const StepSequence& part, EncodeScratch* scratch) {
  const PageLayout& layout = layouts_[static_cast<size_t>(layer)];
  const SideLayout& s = layout.side(side);
  const RawRows raw = RawRowsOf(layer, side, part);
  HeadCodec codec = CodecOf(layer, side, head, part.stats());
  const int64_t sink = config_.spec.sink;
  int64_t order = std::max(part.sequence->packed_end, sink);
  while (order < part.packed_end) {  // a page at a time
    const int64_t slot = (order - sink) % layout.page_tokens;
    const int64_t end = std::min(part.packed_end, order + layout.page_tokens - slot);
    const size_t n = static_cast<size_t>(end - order);
    GatherRows(raw, head, s.d, order, end, scratch->rows.data());
    uint8_t* unit = Unit(layer, head, *part.sequence, order);
    if (s.page_mean) {
      MeasurePageMean(codec, scratch->rows.data(), n, unit + s.mean_offset);
      ReadPageMean(s, unit, scratch->page_mean.data());
      codec.page_mean = scratch->page_mean.data();
    }
    if (!PackRows(s, codec, n, unit, slot, scratch)) {
      int64_t bad = order;  // the first that can't be encoded alone
      for (; bad + 1 < end; ++bad) {
        const size_t copies = s.page_record ? n : 1;
        for (size_t t = 0; t < copies; ++t) {
          GatherRows(raw, head, s.d, bad, bad + 1, scratch->rows.data() + t * static_cast<size_t>(s.d));
        }
        if (!PackRows(s, codec, copies, unit, slot, scratch)) break;
      }
      return FailToken(layer, side, head, part, bad);
    }
    for (int64_t i = order; i < end && layout.rotary > 0; ++i) {
      PackRotary(layout, unit, static_cast<int>(slot + i - order), raw.Row(i) + s.d);
    }
    order = end;
  }
}

// n rows of scratch->rows into slots [slot, slot + n) of a unit.
bool History::PackRows(const SideLayout& side, const HeadCodec& codec, size_t n, uint8_t* unit, int64_t slot,
                       EncodeScratch* scratch) const {
  const float* rows = scratch->rows.data();
  if (side.storage == Storage::kRecords) {
    uint8_t* records = unit + side.codes_offset + static_cast<size_t>(slot) * side.record_bytes;
    return encoder_->EncodeRecords(codec, rows, n, records, scratch->encode.data());
  }
  uint8_t* codes = scratch->codes.data();
  if (!encoder_->Encode(codec, rows, n, codes, scratch->scales.data(), scratch->encode.data())) return false;
  for (size_t i = 0; i < n; ++i) {
    PackToken(side, unit, static_cast<int>(slot) + static_cast<int>(i), codes + i * static_cast<size_t>(side.d),
              scratch->scales[i]);
  }
  return true;
}

uint8_t* History::Unit(int layer, int head, const Sequence& sequence, int64_t order) const {
  const PageLayout& layout = layouts_[static_cast<size_t>(layer)];
  const size_t page = static_cast<size_t>((order - config_.spec.sink) / layout.page_tokens);
  return sequence.layers[static_cast<size_t>(layer)].pages[page].data() + static_cast<size_t>(head) * layout.unit_bytes;
}

// Packed tokens [begin, packed_end) become raw rows of the ring again.
void History::UnpackTail(Sequence* sequence, int64_t begin) {
  std::vector<float> row;
  for (int layer = 0; layer < static_cast<int>(layouts_.size()); ++layer) {
    for (const Kv kv : {Kv::kK, Kv::kV}) {
      const size_t l = static_cast<size_t>(layer), width = RowWidth(config_.layers[l], kv);
      const SideLayout& side = layouts_[l].side(kv);
      row.resize(static_cast<size_t>(3 * side.d));
      for (int head = 0; head < layouts_[l].kv_heads; ++head) {
        const HeadCodec codec = CodecOf(layer, kv, head, sequence->stats.get());
        for (int64_t order = begin; order < sequence->packed_end; ++order) {
          UnpackRow(side, codec, *encoder_, Unit(layer, head, *sequence, order),
                    static_cast<size_t>((order - config_.spec.sink) % side.page_tokens), row.data());
          uint16_t* out = sequence->layers[l].ring[static_cast<int>(kv)].get() +
                          static_cast<size_t>(order % sequence->ring_capacity) * width +
                          static_cast<size_t>(head) * static_cast<size_t>(side.d);
          for (int c = 0; c < side.d; ++c) {  // what is decoded may lie above the largest row that was stored
            out[c] = F32ToF16(std::clamp(row[static_cast<size_t>(c)], -65504.0f, 65504.0f));
          }
        }
      }
    }
  }
}

void History::Fail(int layer, Kv side, int head, size_t row) {
  int64_t none = -1;
  const int64_t where = ((static_cast<int64_t>(layer) * 2 + static_cast<int64_t>(side)) << 44) |
                        (static_cast<int64_t>(head) << 32) | static_cast<int64_t>(row);
  failure_.compare_exchange_strong(none, where);
}

void History::FailToken(int layer, Kv side, int head, const StepSequence& part, int64_t order) {
  const int32_t position = part.sequence->positions[static_cast<size_t>(order)];
  Fail(layer, side, head, kPosition | static_cast<uint32_t>(position));
}

Status History::FailureStatus() const {
  const int64_t where = failure_;
  const char* side = (where >> 44) & 1 ? "V" : "K";
  const int64_t layer = where >> 45, head = (where >> 32) & 0xfff, row = where & 0x7fffffff;
  if ((where & kPosition) != 0) {
    return DataLoss(fmt::format(
        "{} of the token at position {} (layer {}, KV head {}) is too large to be stored as {}: nothing was "
        "appended; use a spec with a wider range, or a profile of this model",
        side, row, layer, head, FormatSpec(config_.spec)));
  }
  return DataLoss(
      fmt::format("{} of token {} of the step (layer {}, KV head {}) is not finite or too large for a raw row: "
                  "nothing was appended; the model's output before it is already damaged",
                  side, row, layer, head));
}

}  // namespace tersekv
