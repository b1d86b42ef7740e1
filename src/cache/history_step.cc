// SPDX-License-Identifier: Apache-2.0
// The beginning and the end of a step: grouping, reserving, committing, rolling back.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/cache/history.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

constexpr size_t kRingBlock = 32;  // the ring of a short sequence grows by this many rows

size_t PagesFor(int64_t packed, int page) {
  return static_cast<size_t>((std::max<int64_t>(packed, 0) + page - 1) / page);
}

// What the tables of a sequence grow by for `tokens` and `pages`. A truncated sequence has kept its capacity.
size_t TableGrowth(const Sequence& sequence, size_t tokens, size_t pages, size_t layers) {
  const auto growth = [](size_t want, size_t have) { return want > have ? want - have : 0; };
  size_t bytes = growth(PositionCapacity(tokens), sequence.positions.capacity()) * sizeof(int32_t) +
                 growth(layers, sequence.layers.capacity()) * sizeof(SequenceLayer);
  const std::vector<PageRef> none;
  for (size_t l = 0; l < layers; ++l) {
    const std::vector<PageRef>& have = sequence.layers.empty() ? none : sequence.layers[l].pages;
    bytes += growth(RoundUp(pages, kPageBlock), have.capacity()) * sizeof(PageRef) +
             growth(pages, have.size()) * sizeof(Page);
  }
  return bytes;
}

}  // namespace

int64_t History::RingCapacity(bool measured, int64_t end) const {
  const int64_t back = config_.spec.raw() ? 0 : config_.rollback;
  int64_t full = config_.spec.win + back + (whole_pages_ ? config_.spec.page : 0);
  if (NeedsStatistics() && (!measured || (back > 0 && end < config_.spec.sink + kStatsTokens + back))) {
    full = std::max<int64_t>(full, kStatsTokens + back);
  }
  const int64_t behind_sinks = std::max<int64_t>(end - config_.spec.sink, 0);
  return std::min(full, static_cast<int64_t>(RoundUp(static_cast<size_t>(behind_sinks), kRingBlock)));
}

bool History::Measures(const Sequence* sequence, int64_t end) const {
  return NeedsStatistics() && (sequence == nullptr || !sequence->stats) && end >= config_.spec.sink + kStatsTokens;
}

int64_t History::PageStart(int64_t order) const {
  const int64_t sink = config_.spec.sink;
  return order - std::max<int64_t>(order - sink, 0) % config_.spec.page;
}

int64_t History::Reach(int64_t end) const {
  const int64_t reach = end - config_.spec.win;
  return whole_pages_ ? PageStart(reach) : reach;
}

int64_t History::PackedEnd(const Sequence& sequence, int64_t end) const {
  const int64_t reach = Reach(end);
  const bool may_pack = !NeedsStatistics() || sequence.stats || Measures(&sequence, end);
  if (!may_pack || reach <= config_.spec.sink) return sequence.packed_end;
  return std::max(sequence.packed_end, reach);
}

size_t History::StatisticsBytes() const {
  size_t bytes = config_.layers.size() * sizeof(Statistics::Layer);
  for (const LayerShape& shape : config_.layers) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const size_t vectors = (parts_.mean ? 1u : 0u) + (parts_.scale[static_cast<int>(side)] ? 2u : 0u);
      bytes += sizeof(float) * vectors * RowWidth(shape, side);
    }
  }
  return bytes;
}

std::shared_ptr<Statistics> History::NewStatistics() {
  const size_t bytes = StatisticsBytes();
  TERSEKV_CHECK(pool_.Charge(bytes));
  std::shared_ptr<Statistics> stats(new Statistics, [this, bytes](Statistics* s) {
    pool_.Refund(bytes);
    delete s;
  });
  stats->layers.resize(config_.layers.size());
  for (size_t l = 0; l < config_.layers.size(); ++l) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      Statistics::Side& s = side == Kv::kK ? stats->layers[l].k : stats->layers[l].v;
      const size_t width = RowWidth(config_.layers[l], side);
      if (parts_.mean) s.mean.resize(width);
      if (!parts_.scale[static_cast<int>(side)]) continue;
      s.scale.resize(width, 1.0f);
      s.inv_scale.resize(width, 1.0f);
    }
  }
  return stats;
}

// What the raw rows of a sequence grow by: all of them when it is new, its ring while it is short or when a truncation
// dropped the statistics.
size_t History::RawGrowth(const Sequence* sequence, int64_t end) const {
  if (config_.spec.raw()) return 0;
  const int64_t ring = RingCapacity(sequence != nullptr && sequence->stats, end);
  const int64_t rows =
      sequence == nullptr ? config_.spec.sink + ring : std::max<int64_t>(ring - sequence->ring_capacity, 0);
  size_t width = 0;
  for (const LayerShape& shape : config_.layers) width += RowWidth(shape, Kv::kK) + RowWidth(shape, Kv::kV);
  return static_cast<size_t>(rows) * width * sizeof(uint16_t);
}

// Accounts for what the raw rows and tables of a sequence take now.
bool History::Recharge(Sequence* sequence) {
  const size_t charge = sequence->raw_bytes(config_) + sequence->table_bytes();
  if (charge > sequence->charged && !pool_.Charge(charge - sequence->charged)) return false;
  if (charge < sequence->charged) pool_.Refund(sequence->charged - charge);
  sequence->charged = charge;
  return true;
}

// The last page has room left: the next packed token is written into it.
bool History::HasOpenPage(const Sequence& sequence) const {
  if (sequence.layers.empty() || sequence.layers[0].pages.empty()) return false;
  return (sequence.packed_end - config_.spec.sink) % config_.spec.page != 0;
}

// Upper bound of what the pool must give for `tokens` more tokens; exact for sequences that grow one way.
size_t History::BytesToAppend(const Sequence* sequence, int64_t tokens) const {
  static const Sequence kEmpty;
  const Sequence& s = sequence != nullptr ? *sequence : kEmpty;
  const int64_t end = s.length() + tokens;
  const int64_t packed_end = PackedEnd(s, end);
  const size_t have = s.layers.empty() ? 0 : s.layers[0].pages.size();
  const size_t want = std::max(have, PagesFor(packed_end - config_.spec.sink, config_.spec.page));
  size_t bytes = TableGrowth(s, static_cast<size_t>(end), want, config_.layers.size()) + RawGrowth(sequence, end);
  if (Measures(sequence, end)) bytes += StatisticsBytes();
  const bool writes = packed_end > s.packed_end && HasOpenPage(s);
  for (size_t l = 0; l < layouts_.size(); ++l) {
    const bool copies = writes && s.layers[l].pages.back().shared();  // layers share each for itself
    bytes += (want - have + (copies ? 1 : 0)) * layouts_[l].page_bytes;
  }
  return bytes;
}

int64_t History::TokensThatFit(int32_t id) const {
  if (pool_.budget() == 0) return std::numeric_limits<int64_t>::max();
  const Sequence* sequence = Find(id);
  int64_t fits = 0, fails = int64_t{1} << 40;
  while (fails - fits > 1) {
    const int64_t middle = fits + (fails - fits) / 2;
    (BytesToAppend(sequence, middle) <= pool_.available() ? fits : fails) = middle;
  }
  return fits;
}

Status History::GroupTokens(std::span<const StepToken> tokens) {
  std::map<int32_t, size_t> index;
  std::vector<int32_t> last;
  for (size_t row = 0; row < tokens.size(); ++row) {
    const StepToken& token = tokens[row];
    if (token.seq < 0 || token.pos < 0) {
      return InvalidArgument(
          fmt::format("token {} has sequence {} and position {}: neither may be negative", row, token.seq, token.pos));
    }
    if (token.pos > kMaxPosition) {
      return InvalidArgument(fmt::format("token {} of sequence {} has position {}: the largest is {}", row, token.seq,
                                         token.pos, kMaxPosition));
    }
    const auto [it, fresh] = index.emplace(token.seq, step_.size());
    if (fresh) {
      StepSequence part;
      part.id = token.seq;
      const Sequence* sequence = Find(token.seq);
      part.created = sequence == nullptr;
      part.begin = sequence != nullptr ? sequence->length() : 0;
      last.push_back(part.begin > 0 ? sequence->positions.back() : -1);
      step_.push_back(std::move(part));
    }
    StepSequence& part = step_[it->second];
    if (token.pos <= last[it->second]) {
      return InvalidArgument(
          fmt::format("token {} of sequence {} has position {}, but position {} is already there: "
                      "positions must ascend (truncate first to rewrite)",
                      row, token.seq, token.pos, last[it->second]));
    }
    last[it->second] = token.pos;
    StepQuery query;
    query.order = part.begin + static_cast<int64_t>(part.queries.size());
    query.position = token.pos;
    query.row = static_cast<int>(row);
    part.queries.push_back(query);
  }
  return {};
}

Status History::BeginStep(std::span<const StepToken> tokens) {
  if (!step_.empty()) return Internal("a step is already running: end or abort it first");
  if (tokens.empty()) return InvalidArgument("a step needs at least one token");
  if (Status s = GroupTokens(tokens); !s.ok()) {
    step_.clear();
    return s;
  }
  size_t bytes = 0;
  for (const StepSequence& part : step_)
    bytes += BytesToAppend(Find(part.id), static_cast<int64_t>(part.queries.size()));
  if (bytes > pool_.available()) {
    const int32_t id = step_[0].id;
    step_.clear();
    return OutOfBudget(
        fmt::format("the KV budget of {} bytes cannot take {} more tokens ({} bytes needed, {} free); {} "
                    "more fit in sequence {}: raise the budget, use fewer bits, or drop a sequence",
                    pool_.budget(), tokens.size(), bytes, pool_.available(), TokensThatFit(id), id));
  }
  size_t slot = 0;
  for (StepSequence& part : step_) {
    part.first_slot = slot;
    slot += part.queries.size();
    Reserve(&part);
  }
  ReserveScratch(slot);
  std::fill(written_.begin(), written_.end(), uint8_t{0});
  failure_ = -1;
  return {};
}

void History::Reserve(StepSequence* part) {
  Sequence& sequence = sequences_[part->id];
  part->sequence = &sequence;
  const int64_t end = part->begin + static_cast<int64_t>(part->queries.size());
  const int64_t ring = RingCapacity(sequence.stats != nullptr, end);
  if (part->created) {
    AllocateRawRows(config_, ring, &sequence);
    sequence.stats = given_stats_;
  }
  if (ring > sequence.ring_capacity) ResizeRing(config_, ring, &sequence);
  part->packed_end = PackedEnd(sequence, end);
  const bool measures = Measures(&sequence, end);
  ReservePages(part);
  sequence.positions.reserve(PositionCapacity(static_cast<size_t>(end)));
  for (StepQuery& query : part->queries) {
    sequence.positions.push_back(query.position);
    const bool measured = !NeedsStatistics() || sequence.stats || query.order + 1 >= config_.spec.sink + kStatsTokens;
    query.packed_end = config_.spec.sink;
    if (measured) {
      query.packed_end = std::max({query.packed_end, Reach(query.order + 1), sequence.raw_begin});
    }
    if (config_.prefill == Prefill::kRaw && !config_.spec.raw() && part->queries.size() > 1) {
      query.packed_end = std::min(query.packed_end, std::max<int64_t>(sequence.packed_end, config_.spec.sink));
    }
  }
  if (measures) part->new_stats = NewStatistics();
  TERSEKV_CHECK(Recharge(&sequence));
}

void History::ReservePages(StepSequence* part) {
  Sequence& sequence = *part->sequence;
  part->old_pages = sequence.layers[0].pages.size();
  const size_t want = std::max(part->old_pages, PagesFor(part->packed_end - config_.spec.sink, config_.spec.page));
  const bool writes = part->packed_end > sequence.packed_end && HasOpenPage(sequence);
  for (size_t l = 0; l < sequence.layers.size(); ++l) {
    std::vector<PageRef>& pages = sequence.layers[l].pages;
    pages.reserve(RoundUp(want, kPageBlock));
    if (writes && pages.back().shared()) {  // copy on write
      Page* copy = pool_.Take(size_classes_[l]);
      TERSEKV_CHECK(copy != nullptr);
      std::memcpy(copy->data, pages.back().data(), copy->bytes);
      pages.back() = PageRef(&pool_, copy);
    }
    while (pages.size() < want) {
      Page* page = pool_.Take(size_classes_[l]);
      TERSEKV_CHECK(page != nullptr);
      pages.emplace_back(&pool_, page);
    }
  }
}

Status History::EndStep() {
  if (step_.empty()) return Internal("no step is running");
  Status failure = failure_ >= 0 ? FailureStatus() : Status();
  if (failure.ok() && std::find(written_.begin(), written_.end(), uint8_t{0}) != written_.end()) {
    failure = Internal("the engine did not write K and V of every layer and head in this step");
  }
  if (!failure.ok()) {
    AbortStep();
    return failure;
  }
  for (StepSequence& part : step_) Commit(&part);
  step_.clear();
  return {};
}

void History::Commit(StepSequence* part) {
  Sequence& sequence = *part->sequence;
  const int64_t end = sequence.length();
  if (!config_.spec.raw()) {
    for (size_t l = 0; l < config_.layers.size(); ++l) {
      for (const Kv side : {Kv::kK, Kv::kV}) {
        const RawRows raw = RawRowsOf(static_cast<int>(l), side, *part);
        const int s = static_cast<int>(side);
        const size_t bytes = raw.width * sizeof(uint16_t);
        if (bytes == 0) continue;
        for (int64_t order = part->begin; order < std::min<int64_t>(end, raw.sink_count); ++order) {
          std::memcpy(sequence.layers[l].sinks[s].get() + static_cast<size_t>(order) * raw.width, raw.Row(order),
                      bytes);
        }
        for (int64_t order = std::max({part->begin, raw.sink_count, end - raw.ring_capacity}); order < end; ++order) {
          std::memcpy(sequence.layers[l].ring[s].get() + static_cast<size_t>(order % raw.ring_capacity) * raw.width,
                      raw.Row(order), bytes);
        }
      }
    }
  }
  const int64_t full = std::max<int64_t>(sequence.packed_end - config_.spec.sink, 0) / config_.spec.page;
  sequence.packed_end = part->packed_end;
  if (part->new_stats) sequence.stats = part->new_stats;
  if (const int64_t capacity = RingCapacity(sequence.stats != nullptr, end); capacity != sequence.ring_capacity) {
    ResizeRing(config_, capacity, &sequence);
  }
  GiveBackPages(&sequence);
  SharePages(&sequence, static_cast<size_t>(full));
  TERSEKV_CHECK(Recharge(&sequence));
}

void History::AbortStep() {
  for (StepSequence& part : step_) {
    part.new_stats.reset();
    if (part.sequence == nullptr) continue;
    if (part.created) {
      Remove(part.id);
      continue;
    }
    part.sequence->positions.resize(static_cast<size_t>(part.begin));
    for (SequenceLayer& layer : part.sequence->layers) {
      while (layer.pages.size() > part.old_pages) layer.pages.pop_back();
    }
    const int64_t ring = RingCapacity(part.sequence->stats != nullptr, part.begin);
    if (ring < part.sequence->ring_capacity) ResizeRing(config_, ring, part.sequence);  // it grew for the step
    TERSEKV_CHECK(Recharge(part.sequence));
  }
  step_.clear();
}

}  // namespace tersekv
