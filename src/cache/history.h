// SPDX-License-Identifier: Apache-2.0
// All sequences of one model and the running step. The public face is KvCache (include/tersekv/cache.h); the rules of
// what is packed and what a query sees are section 6 of docs/decisions/0001-contract.md.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "src/cache/encoder.h"
#include "src/cache/memory.h"
#include "src/cache/page_pool.h"
#include "src/cache/sequence.h"
#include "src/codec/page_layout.h"
#include "src/transform/rotation.h"
#include "tersekv/cache.h"

namespace tersekv {

// One query of the step and what it sees: raw tokens [0, sink), packed [sink, packed_end), raw [packed_end, order].
struct StepQuery {
  int64_t order = 0;  // index of its own token in the sequence
  int64_t packed_end = 0;
  int32_t position = 0;
  int row = 0;  // of the step
};

// The share of one sequence in the running step.
struct StepSequence {
  int32_t id = 0;
  Sequence* sequence = nullptr;
  int64_t begin = 0;       // tokens before the step
  int64_t packed_end = 0;  // after it
  size_t first_slot = 0;   // its rows in the step's scratch are [first_slot, first_slot + queries.size())
  bool created = false;    // the step made the sequence
  std::vector<StepQuery> queries;
  std::shared_ptr<Statistics> new_stats;  // when the step completes the tokens that are measured
  size_t old_pages = 0;                   // pages a layer before the step

  const Statistics* stats() const { return new_stats ? new_stats.get() : sequence->stats.get(); }
};

// What attention reads of one layer and sequence.
struct LayerView {
  const PageLayout* layout = nullptr;
  const PageRef* pages = nullptr;
  RawRows raw[2];                            // by Kv; unused for raw specs
  const Statistics::Layer* stats = nullptr;  // null: no mean, no scale
  const int32_t* positions = nullptr;        // by order, see Sequence
  int64_t sink = 0;
  bool removed = false;  // some places hold no token

  struct HeadStats {
    const float *mean = nullptr, *scale = nullptr;  // null: none
  };
  // Of channels from `at` on; those of a latent layer's V are K's.
  HeadStats StatsOf(Kv side, size_t at) const {
    if (stats == nullptr) return {};
    const Statistics::Side& s = side == Kv::kK || layout->latent ? stats->k : stats->v;
    return {s.mean.empty() ? nullptr : s.mean.data() + at, s.scale.empty() ? nullptr : s.scale.data() + at};
  }
};

class History {
 public:
  // The budget takes GivenStatisticsBytes(config) at least.
  History(CacheConfig config, std::unique_ptr<const Encoder> encoder);  // config.memory is not null
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;
  static size_t GivenStatisticsBytes(const CacheConfig& config);  // what an empty cache holds

  Status BeginStep(std::span<const StepToken> tokens);
  void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers);
  Status EndStep();
  void AbortStep();

  // src/cache/sequence_ops.cc, shift.cc
  Status Truncate(int32_t id, int64_t tokens);
  Status RemoveRange(int32_t id, int64_t begin, int64_t end);
  Status Fork(int32_t from, int32_t to);
  Status Copy(int32_t from, int32_t to, int64_t begin, int64_t end);
  Status Shift(int32_t id, int64_t begin, int64_t end, int64_t delta, std::span<const KeyRotation> rotations);
  void Remove(int32_t id);
  void Keep(int32_t id);
  int32_t FirstPosition(int32_t id) const;
  std::vector<int32_t> Sequences() const;
  Result<SequenceState> State(int32_t id) const;  // src/cache/state.cc
  Status Restore(int32_t id, const SequenceState& state);
  void SetQueryHeads(int layer, int heads) { config_.layers[static_cast<size_t>(layer)].heads = heads; }

  const Sequence* Find(int32_t id) const;
  Status ReadRows(int32_t id, int layer, Kv side, int64_t first, int64_t n, float* rows, ptrdiff_t row_stride) const;
  int64_t TokensThatFit(int32_t id) const;
  CacheUsage Usage() const;

  const CacheConfig& config() const { return config_; }
  const std::vector<StepSequence>& step() const { return step_; }
  LayerView View(int layer, const StepSequence& part) const;
  const RotationOp& rotation(int layer, Kv side, int kv_head) const {
    return rotations_[static_cast<size_t>(layer)][static_cast<int>(side)][static_cast<size_t>(kv_head)];
  }
  // The codec of one head with the statistics of a sequence.
  HeadCodec CodecOf(int layer, Kv side, int kv_head, const Statistics* stats) const;

 private:
  // Sequences measure their own statistics.
  bool NeedsStatistics() const { return measures_; }
  // Tokens [sink, Reach(end)) are packed once `end` tokens are there, as far as statistics allow it.
  int64_t Reach(int64_t end) const;
  int64_t PageStart(int64_t order) const;  // of the page that holds packed token `order`
  void UnpackTail(Sequence* sequence, int64_t begin);
  Status CutBack(Sequence* sequence, int64_t end);
  void RemoveInside(Sequence* sequence, int64_t begin, int64_t end);
  void UnlinkPages(Sequence* sequence);
  void CompactRemoved(Sequence* sequence);
  void SharePages(Sequence* sequence, size_t first);  // src/cache/share.cc
  void GiveBackPages(Sequence* sequence);             // those that no window reaches any more
  Status CheckState(const SequenceState& state) const;
  Status CheckWindows(const Sequence& sequence, int64_t newest, int64_t begin, int64_t end, int64_t delta) const;
  Status OwnPages(Sequence* sequence, int64_t begin, int64_t end);
  bool TurnKeys(int layer, int head, int64_t begin, int64_t end, const float* turns, const KeyRotation& rotation,
                Sequence* sequence, EncodeScratch* scratch);
  uint8_t* Unit(int layer, int head, const Sequence& sequence, int64_t order) const;
  int32_t Window(size_t layer) const { return config_.windows.empty() ? 0 : config_.windows[layer]; }
  int64_t RingCapacity(bool measured, int64_t end) const;          // rows the ring has when the sequence ends there
  int64_t PackedEnd(const Sequence& sequence, int64_t end) const;  // after a step that ends there
  bool Measures(const Sequence* sequence, int64_t end) const;      // a step that ends there makes the statistics
  Status GroupTokens(std::span<const StepToken> tokens);
  void Reserve(StepSequence* part);
  void ReservePages(StepSequence* part);
  bool HasOpenPage(const Sequence& sequence) const;
  std::shared_ptr<Statistics> NewStatistics();
  size_t StatisticsBytes() const;
  size_t RawGrowth(const Sequence* sequence, int64_t end) const;
  bool Recharge(Sequence* sequence);
  void ReserveScratch(size_t rows);
  size_t PageBytes(size_t* saved) const;
  size_t BytesToAppend(const Sequence* sequence, int64_t tokens) const;
  void Commit(StepSequence* part);
  RawRows RawRowsOf(int layer, Kv side, const StepSequence& part) const;
  void StoreStepRows(int layer, Kv side, int head, const float* rows, ptrdiff_t stride, const StepSequence& part);
  void StoreRawPages(int layer, Kv side, int head, const float* rows, ptrdiff_t stride, const StepSequence& part);
  void WriteMeasured(int layer, Kv side, const float* rows, ptrdiff_t stride, EncodeScratch* scratch);
  void Measure(int layer, Kv side, int head, const StepSequence& part, EncodeScratch* scratch);
  float MeasurePeak(int layer, Kv side, int head, const StepSequence& part, EncodeScratch* scratch) const;
  void ShareScale(int layer, Kv side, int head, const StepSequence& part, float peak) const;
  void Pack(int layer, Kv side, int head, const StepSequence& part, EncodeScratch* scratch);
  bool PackRows(const SideLayout& side, const HeadCodec& codec, size_t n, uint8_t* unit, int64_t slot,
                EncodeScratch* scratch) const;
  void GatherRows(const RawRows& raw, int head, int d, int64_t begin, int64_t end, float* out) const;
  void Fail(int layer, Kv side, int head, size_t row);
  void FailToken(int layer, Kv side, int head, const StepSequence& part, int64_t order);
  Status FailureStatus() const;

  CacheConfig config_;
  std::unique_ptr<const Encoder> encoder_;
  std::shared_ptr<CacheMemory> memory_;
  PagePool& pool_;                                                 // of memory_
  std::vector<PageLayout> layouts_;                                // by layer
  std::vector<int> size_classes_;                                  // by layer
  std::vector<std::array<std::vector<RotationOp>, 2>> rotations_;  // by layer, side, head
  std::map<int, std::shared_ptr<const RotationOp>> projections_;   // by head_dim, of prod
  StatisticsParts parts_;                                          // that statistics hold
  bool measures_ = false;                                          // sequences measure their own statistics
  bool whole_pages_ = false;                                       // pages are packed whole
  std::shared_ptr<const Statistics> given_stats_;                  // of a profile
  std::map<int32_t, Sequence> sequences_;
  std::vector<StepSequence> step_;
  EncodeScratch::Sizes needed_;       // of each worker
  std::vector<uint8_t> written_;      // by layer, side, head: rows of this step are there
  std::vector<size_t> written_at_;    // by layer: its first entry in written_
  std::atomic<int64_t> failure_{-1};  // first row that cannot be stored, see Fail
};

}  // namespace tersekv
