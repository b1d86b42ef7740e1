// SPDX-License-Identifier: Apache-2.0
// The packed KV cache of one model: appends rows, answers attention, counts bytes.
//
// A host drives it in steps. One step = the tokens of one forward pass:
//   BeginStep -> for each layer: WriteRows(K), WriteRows(V), Attend -> EndStep (or AbortStep).
// BeginStep allocates whatever the step needs; WriteRows and Attend never allocate and may be called by several threads
// at once, each with its own `worker` number; everything else is for one thread. Results are bit-equal for every number
// of workers (docs/numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tersekv/attention.h"
#include "tersekv/rope.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv {

struct LayerShape {
  int heads = 0;  // query heads, a multiple of kv_heads
  int kv_heads = 0;
  // 1 to 1024. Packed specs: a multiple of 16 from 32; with rot=h1 or h2 its odd part is 1, 3, 5, 7 or 9; formats of
  // blocks take multiples of their block.
  int head_dim_k = 0, head_dim_v = 0;
  // Multi-head latent attention: V is the first head_dim_v channels of K, the rest of K is its rotary part. Kept once:
  // the latent by the codec of K, the rotary part as f16; WriteRows of V does nothing. One KV head; raw and Lloyd-Max
  // specs without mean=page.
  bool latent = false;
  bool operator==(const LayerShape&) const = default;
};

// How packed tokens are attended; raw tokens always in fp32. Errors are against double precision over the same decoded
// values, relative to the largest output of a head, for logits of some tens; they grow with them (docs/numerics.md).
enum class Arithmetic : uint8_t {
  kInt16 = 0,  // queries and weights as 16-bit integers, exact integer sums: within 5e-4, the faster one
  kExact = 1,  // fp32: within 2e-5
  kFast = 2,   // codes of up to 4 bits with 8-bit queries and weights: within 5e-2; wider ones as kInt16
};

// Widths of one layer of a "kNvN" cache in place of those of its spec.
struct LayerBits {
  int k = 0, v = 0;
  bool operator==(const LayerBits&) const = default;
};

// What a profile knows of one layer, all of [kv_heads * head_dim]: used in place of what a sequence would measure.
struct LayerStats {
  std::vector<float> k_mean, k_scale, v_mean, v_scale;  // scales > 0; a row is (x - mean) / scale before it is rotated
  std::vector<float> k_variance = {}, v_variance = {};  // of the rows; fp8-head and fp8-tensor need them
};

// What the queries of a step see of the history (docs/architecture.md, "What a query sees").
enum class Prefill : uint8_t {
  kDecode = 0,  // what a step of one token at their position would see
  kRaw = 1,     // a sequence's step of several tokens sees these raw, and packed what was packed before the step
};

// Pages, their budget and scratch, for caches that share them: a host that steps layer by layer keeps one cache a
// layer. Sharing caches never run steps at the same time, and all of them are for one thread together.
class CacheMemory;
// byte_budget: limit of bytes_reserved of all of them; 0 = none.
std::shared_ptr<CacheMemory> MakeCacheMemory(size_t byte_budget);
// Gives back scratch, which otherwise stays as large as the largest step. Not while a step runs.
void ReleaseScratch(CacheMemory* memory);
size_t ScratchBytes(const CacheMemory& memory);
// Counts bytes of the host's own (or scratch) under the budget too; false: they do not fit, nothing is counted.
bool ChargeMemory(CacheMemory* memory, size_t bytes);
void RefundMemory(CacheMemory* memory, size_t bytes);  // of what was charged

struct CacheConfig {
  KvSpec spec;
  std::vector<LayerShape> layers;      // by KV-layer ordinal
  std::vector<LayerBits> layer_bits;   // by layer, or empty: as the spec says
  std::vector<LayerStats> statistics;  // by layer, or empty: as the spec says
  // Sliding windows by layer, or empty: query at position p sees p - window < pos <= p; 0 = all. Pages that no query
  // can see any more are given back. Attend of such a layer takes no larger window.
  std::vector<int32_t> windows;
  // Newest tokens that can be taken back (Truncate, RemoveRange) as if they had never been there: their number of raw
  // rows more a sequence. Without it what had left the raw window stays packed.
  int rollback = 0;
  // Windowed layers keep their pages so long that this many newest tokens can be taken back. What had left the raw
  // window stays packed then; with a larger `rollback` that counts.
  int keep_back = 0;
  // Values come rotated by the host (an orthogonal matrix that its model has taken in): the spec's rotation is for keys
  // alone, outputs stay as rotated as the values. Not in SequenceState and files: their reader says it again.
  bool values_rotated = false;
  size_t byte_budget = 0;  // limit of bytes_reserved without scratch; 0 = none, or that of `memory`
  int max_workers = 1;     // largest `workers` that will be passed
  Arithmetic arithmetic = Arithmetic::kInt16;
  Prefill prefill = Prefill::kDecode;
  // Full pages with equal bytes are held once, whichever sequences they are of: found when a page becomes full and by
  // Restore, copied when one side writes. Results are what they are without.
  bool share_pages = false;
  int first_layer = 0;                  // KV-layer ordinal of layers[0] in the model: picks the sign streams
  std::shared_ptr<CacheMemory> memory;  // null: memory of its own
};

inline constexpr int32_t kMaxPosition = INT32_MAX - 1;  // so that the position after it is a number

struct StepToken {
  int32_t seq = 0;  // any id >= 0; a new id starts an empty sequence
  int32_t pos = 0;  // > the position of the sequence's newest token, at most kMaxPosition
};

enum class Kv : uint8_t { kK = 0, kV = 1 };

// All sizes are allocated bytes (CONTRACT: docs/decisions/0001-contract.md, section 7).
struct CacheUsage {
  size_t pages = 0;       // packed pages, the open ones included
  size_t raw_rows = 0;    // raw sinks and the raw window
  size_t stats = 0;       // means and scales
  size_t tables = 0;      // page tables and positions
  size_t bytes_used = 0;  // sum of the four
  // Taken from the system: bytes_used, idle pages and the rests of slabs. Without a budget pages come from slabs of
  // 2 MiB, which stay until the cache goes. Of all caches that share memory, as is scratch.
  size_t bytes_reserved = 0;
  size_t scratch = 0;    // of the running step: not history, reused by every step
  size_t saved = 0;      // that pages would take on top if none were shared
  size_t bytes_f16 = 0;  // what the same tokens take as f16 rows
  int64_t tokens = 0;    // over all sequences (a shared token counts for each sequence that has it)
  int64_t tokens_packed = 0;
  double bits_effective = 0;  // bytes_used * 8 / values held
};

// One sequence as it lies in a cache, for files and hosts that keep it elsewhere (tersekv/session.h). Views: State's
// are valid until the cache changes, Restore copies them. Pages and rows are as docs/formats.md says; a cache of the
// same spec, layers, first_layer, widths and windows takes them; spec and widths are not in it, and so not checked.
struct SequenceState {
  struct Layer {
    std::span<const uint8_t> sinks[2], ring[2];   // by Kv: f16 rows; empty for raw specs
    std::vector<std::span<const uint8_t>> pages;  // an empty one was given back
    std::span<const float> statistics[2][3];      // by Kv: mean, scale, 1 / scale; empty: none
  };
  // By place; ~p below 0: a place without a token, p the position before it, 0 when no token is before it.
  std::vector<int32_t> positions;
  int64_t packed_end = 0, raw_begin = 0, ring_capacity = 0;  // places
  int first_layer = 0;                                       // as CacheConfig's
  std::vector<Layer> layers;
  int64_t tokens() const;
};

class KvCache {
 public:
  // kUnsupported names what this version cannot store; kInvalidArgument names the shape that is wrong.
  static Result<std::unique_ptr<KvCache>> Create(const CacheConfig& config);
  virtual ~KvCache() = default;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Tokens of one forward pass in the order of their rows; tokens of several sequences may interleave.
  // Over budget: kOutOfBudget, the message says how many more tokens fit; nothing has changed.
  virtual Status BeginStep(std::span<const StepToken> tokens) = 0;

  // rows: fp32, row t at `rows + t * row_stride` bytes, [kv_heads * head_dim] values, one row a token of the step. Keys
  // come after RoPE. Worker w of n handles its share of the heads; all workers must call. A value that is not finite
  // fails the step: EndStep reports kDataLoss and appends nothing.
  virtual void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) = 0;

  // Attention of every query of the step over its sequence (its own token included). Both sides of the layer must have
  // been written, with a barrier in between.
  virtual void Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int workers) = 0;

  virtual Status EndStep() = 0;  // the step's tokens become history, or none does and the Status says why
  virtual void AbortStep() = 0;  // the cache is as before BeginStep

  // Sequence operations, between steps; what fails changes nothing. Unknown ids are empty sequences. Ranges are
  // positions [begin, end); begin < 0: from the first, end < 0: to the last. What a query sees afterwards:
  // docs/decisions/0008-sequence-operations.md.
  virtual int64_t Length(int32_t seq) const = 0;  // tokens
  // Smallest position from which on every layer holds all tokens (windowed layers have given pages back); -1: empty.
  virtual int32_t FirstPosition(int32_t seq) const = 0;
  virtual int32_t LastPosition(int32_t seq) const = 0;  // -1 when empty
  virtual std::vector<int32_t> Sequences() const = 0;   // ids of those that hold tokens, ascending
  // Keeps the first `tokens`. kUnsupported: a windowed layer has given back pages that the next query would see.
  virtual Status Truncate(int32_t seq, int64_t tokens) = 0;
  // Removes the tokens of a range: its end (as Truncate), middle or beginning. Pages without tokens are given back.
  virtual Status RemoveRange(int32_t seq, int64_t begin, int64_t end) = 0;
  virtual Status Fork(int32_t from, int32_t to) = 0;  // copy on write; `to` must be empty
  // Fork of the tokens of a range.
  virtual Status Copy(int32_t from, int32_t to, int64_t begin, int64_t end) = 0;
  // Adds delta to the positions of a range, whose keys are turned (decoded, turned, encoded: rounded once more); tokens
  // that would come below 0 are removed. rotations: one a layer, one for all, or none when keys know no position.
  // kInvalidArgument: positions would not ascend any more. kDataLoss: a turned key cannot be stored; the sequence is
  // removed then.
  virtual Status Shift(int32_t seq, int64_t begin, int64_t end, int64_t delta,
                       std::span<const KeyRotation> rotations) = 0;
  virtual void Remove(int32_t seq) = 0;
  virtual void Keep(int32_t seq) = 0;  // removes all others
  // kNotFound: the sequence is empty.
  virtual Result<SequenceState> State(int32_t seq) const = 0;
  // Makes the empty sequence `seq` what `state` says; it goes on bit for bit as the saved one. kInvalidArgument: the
  // state cannot be one of this cache, with what is wrong; kOutOfBudget. Nothing has changed then.
  virtual Status Restore(int32_t seq, const SequenceState& state) = 0;
  // Query heads that later steps attend a layer with: a multiple of its kv_heads.
  virtual Status SetQueryHeads(int layer, int heads) = 0;

  // Positions of its tokens, ascending. Valid until the cache changes or is asked again.
  virtual std::span<const int32_t> Positions(int32_t seq) const = 0;
  // Tokens [first, first + n) as attention reads them, decoded and in the original space. Row t is [kv_heads *
  // head_dim] fp32 at `rows + t * row_stride` bytes. kInvalidArgument names the tokens that are not there. One row at a
  // time: for fallbacks and tests, attention reads packed bytes.
  virtual Status ReadRows(int32_t seq, int layer, Kv side, int64_t first, int64_t n, float* rows,
                          ptrdiff_t row_stride) const = 0;

  // How many more tokens one sequence can take within the budget (INT64_MAX without one).
  virtual int64_t TokensThatFit(int32_t seq) const = 0;

  virtual CacheUsage Usage() const = 0;
  virtual const CacheConfig& config() const = 0;  // without its statistics, which the cache has taken over

 protected:
  KvCache() = default;
};

// Code bits + the stored scale, per value, averaged over K and V: k4v4 is 4.25 at head_dim 64 and 4.125 at 128.
double BitsSpec(const KvSpec& spec, int head_dim_k, int head_dim_v);
// The same over all values of all layers.
double BitsSpec(const CacheConfig& config);
// The spec of one layer: the config's, with its own widths.
KvSpec LayerSpec(const CacheConfig& config, size_t layer);

// What a sequence of n tokens takes by the formula of docs/formats.md; a test holds Usage() to it.
size_t FormulaBytes(const CacheConfig& config, int64_t tokens);

// The CPU kernels that attend packed tokens of such a cache, and why, in words; the error of KvCache::Create when there
// is none. For people; nothing should parse it.
Result<std::string> DescribeAttention(const CacheConfig& config);

// Whether layers may be LayerShape::latent under `spec`.
bool HoldsLatents(const KvSpec& spec);

// Whether this build can store `spec`; kUnsupported says what is missing and what to use instead.
Status CheckSupported(const KvSpec& spec);

}  // namespace tersekv
