// SPDX-License-Identifier: Apache-2.0
// Rows of the running step: kept as f16, measured once a sequence, packed as they leave the window.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "src/base/half.h"
#include "src/cache/history.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

// Smallest magnitude that a raw type rounds to infinity.
float OverflowsAt(Family family) {
  if (family == Family::kF16) return 65520.0f;
  return family == Family::kBF16 ? 0x1.ffp127f : std::numeric_limits<float>::infinity();
}

}  // namespace

void History::WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) {
  const size_t l = static_cast<size_t>(layer);
  const int heads = config_.layers[l].kv_heads;
  WorkerScratch* scratch = &workers_[static_cast<size_t>(worker)];
  for (int head = worker; head < heads; head += workers) {
    for (const StepSequence& part : step_) {
      if (config_.spec.raw()) {
        StoreRawPages(layer, side, head, rows, row_stride, part);
        continue;
      }
      StoreStepRows(layer, side, head, rows, row_stride, part);
      if (failure_ >= 0) continue;
      if (part.new_stats) Measure(layer, side, head, part, scratch);
      Pack(layer, side, head, part, scratch);
    }
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
  const int d = layouts_[l].side(side).d;
  uint16_t* out = step_scratch_[l][static_cast<size_t>(side)].get() + part.first_slot * width +
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

void History::Measure(int layer, Kv side, int head, const StepSequence& part, WorkerScratch* scratch) {
  const int d = layouts_[static_cast<size_t>(layer)].side(side).d;
  const int64_t first = config_.spec.sink;
  GatherRows(RawRowsOf(layer, side, part), head, d, first, first + kStatsTokens, scratch->rows.data());
  Statistics::Layer& stats = part.new_stats->layers[static_cast<size_t>(layer)];
  Statistics::Side& s = side == Kv::kK ? stats.k : stats.v;
  const size_t at = static_cast<size_t>(head) * static_cast<size_t>(d);
  RowMean(scratch->rows.data(), kStatsTokens, d, s.mean.data() + at);
  if (s.scale.empty()) return;
  RowScale(scratch->rows.data(), kStatsTokens, d, s.mean.data() + at, s.scale.data() + at, s.inv_scale.data() + at);
}

void History::Pack(int layer, Kv side, int head, const StepSequence& part, WorkerScratch* scratch) {
  const PageLayout& layout = layouts_[static_cast<size_t>(layer)];
  const SideLayout& s = layout.side(side);
  const RawRows raw = RawRowsOf(layer, side, part);
  const HeadCodec codec = CodecOf(layer, side, head, part.stats());
  const std::vector<PageRef>& pages = part.sequence->layers[static_cast<size_t>(layer)].pages;
  const int64_t sink = config_.spec.sink;
  int64_t order = std::max(part.sequence->packed_end, sink);
  while (order < part.packed_end) {
    const int64_t end = std::min(part.packed_end, order + static_cast<int64_t>(kEncodeRows));
    const size_t n = static_cast<size_t>(end - order);
    GatherRows(raw, head, s.d, order, end, scratch->rows.data());
    if (!encoder_->Encode(codec, scratch->rows.data(), n, scratch->codes.data(), scratch->scales.data(),
                          scratch->encode.data())) {
      return Fail(layer, side, head, static_cast<size_t>(part.queries.back().row));
    }
    for (size_t i = 0; i < n; ++i, ++order) {
      const int64_t packed = order - sink;
      uint8_t* unit = pages[static_cast<size_t>(packed / layout.page_tokens)].data() +
                      static_cast<size_t>(head) * layout.unit_bytes;
      PackToken(s, unit, static_cast<int>(packed % layout.page_tokens),
                scratch->codes.data() + i * static_cast<size_t>(s.d), scratch->scales[i]);
    }
  }
}

void History::Fail(int layer, Kv side, int head, size_t row) {
  int64_t none = -1;
  const int64_t where = ((static_cast<int64_t>(layer) * 2 + static_cast<int64_t>(side)) << 44) |
                        (static_cast<int64_t>(head) << 32) | static_cast<int64_t>(row);
  failure_.compare_exchange_strong(none, where);
}

Status History::FailureStatus() const {
  const int64_t where = failure_;
  return DataLoss(
      fmt::format("{} of token {} of the step (layer {}, KV head {}) is not finite or too large for a raw row: "
                  "nothing was appended; the model's output before it is already damaged",
                  (where >> 44) & 1 ? "V" : "K", where & 0xffffffff, where >> 45, (where >> 32) & 0xfff));
}

}  // namespace tersekv
