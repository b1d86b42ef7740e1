// SPDX-License-Identifier: Apache-2.0
// The attention of one tile of queries: packed pages and raw rows into softmax states, states into outputs. Per-target
// include guard.

#if defined(TERSEKV_CPU_TILE_WORK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_TILE_WORK_INL_H_
#undef TERSEKV_CPU_TILE_WORK_INL_H_
#else
#define TERSEKV_CPU_TILE_WORK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "src/cache/history.h"
#include "src/cpu/attend.h"
#include "src/cpu/multiply-inl.h"
#include "src/cpu/query_rows-inl.h"
#include "src/cpu/tile-inl.h"
#include "src/cpu/visible.h"
#include "src/cpu/weigh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One tile of queries at work: what it needs of its layer, sequence and queries.
class TileWork {
 public:
  TileWork(const AttendCall& call, const AttendTile& tile, AttendScratch* scratch)
      : call_(call),
        tile_(tile),
        s_(*scratch),
        part_(call.history->step()[static_cast<size_t>(tile.part)]),
        view_(call.history->View(call.layer, part_)),
        visible_(part_, tile, view_, call.params.window),
        weigher_(scratch, call.params.softcap),
        group_(call.plan->group()),
        rows_(tile.queries * group_),
        dk_(static_cast<size_t>(view_.layout->head_dim_k())),
        packed_dk_(static_cast<size_t>(view_.layout->k.d)),
        dv_(static_cast<size_t>(view_.layout->v.d)),
        stride_(call.plan->stride()),
        integers_k_(Integers(view_.layout->k)),
        integers_v_(Integers(view_.layout->v)),
        fast_k_(Fast(view_.layout->k)),
        fast_v_(Fast(view_.layout->v)) {}

  int rows() const { return rows_; }

  // packed: whether packed tokens will be attended.
  HWY_ATTR void LoadQueries(bool packed) {
    packed = packed && !view_.layout->k.raw();
    const size_t at = static_cast<size_t>(tile_.kv_head) * dk_;
    const auto [mean, scale] = view_.StatsOf(Kv::kK, at);
    for (int r = 0; r < rows_; ++r) {
      const int head = Head(r);
      const float* q =
          Strided(call_.queries.data, Query(r).row * call_.queries.token_stride + head * call_.queries.head_stride);
      float* scaled = s_.q_raw + static_cast<size_t>(r) * dk_;
      s_.q_poison[r] = ScaleRow(q, dk_, call_.params.scale, scaled);
      s_.slope[r] =
          call_.params.max_alibi_bias > 0 ? AlibiSlope(head, call_.queries.heads, call_.params.max_alibi_bias) : 0.0f;
      if (packed) RotateQuery(r, scaled, mean, scale);
    }
  }

  // Packed chunks [begin, end) joined to one state.
  SoftmaxState Packed(int64_t begin, int64_t end) {
    return Fold(
        s_.packed_fold, s_.packed_slots, begin, end, view_.layout->page_tokens,
        [&](int q, int64_t first, int64_t n) { return visible_.Packed(q, first, n); },
        [&](int64_t first, const ChunkBlocks& seen, const SoftmaxState& state) { PackedChunk(first, seen, state); });
  }

  // The raw tokens (sinks and window) joined to one state.
  SoftmaxState Raw() {
    const int64_t chunks = view_.layout->k.raw() ? 0 : visible_.last().order / kChunkTokens + 1;
    return Fold(
        s_.raw_fold, s_.raw_slots, 0, chunks, kRawBlock,
        [&](int q, int64_t first, int64_t n) { return visible_.Raw(q, first, n); },
        [&](int64_t first, const ChunkBlocks& seen, const SoftmaxState& state) { RawChunk(first, seen, state); });
  }

  // Joins both, undoes the value transform, writes the outputs.
  void Write(const SoftmaxState& packed, const SoftmaxState& raw) {
    const size_t at = static_cast<size_t>(tile_.kv_head) * dv_;
    const auto [mean, scale] = view_.StatsOf(Kv::kV, at);
    const RotationOp& rotation = Rotation(view_.layout->latent && !view_.layout->k.raw() ? Kv::kK : Kv::kV);
    for (int r = 0; r < rows_; ++r) {
      const int head = Head(r);
      const float sink = call_.params.sinks != nullptr ? call_.params.sinks[head] : kMinusInfinity;
      const float m = std::max({packed.m[r], raw.m[r], sink});
      const float wp = packed.l[r] > 0 ? std::exp(packed.m[r] - m) : 0.0f;
      const float wr = raw.l[r] > 0 ? std::exp(raw.m[r] - m) : 0.0f;
      const float lp = packed.l[r] * wp;
      const float l = lp + raw.l[r] * wr + (call_.params.sinks != nullptr ? std::exp(sink - m) : 0.0f);
      const float inverse = l > 0 ? 1.0f / l : 0.0f;
      float* o = Strided(call_.queries.out,
                         Query(r).row * call_.queries.out_token_stride + head * call_.queries.out_head_stride);
      float* acc = packed.acc + static_cast<size_t>(r) * stride_;
      rotation.ApplyTransposed(acc, s_.row);
      for (size_t c = 0; scale != nullptr && c < dv_; ++c) acc[c] *= scale[c];
      const float* acc_raw = raw.acc + static_cast<size_t>(r) * stride_;
      for (size_t c = 0; c < dv_; ++c) {
        const float shift = mean != nullptr ? mean[c] * lp : 0.0f;
        o[c] = (acc[c] * wp + shift + acc_raw[c] * wr) * inverse + s_.q_poison[r];
      }
      if (call_.queries.lse != nullptr) {
        call_.queries.lse[static_cast<ptrdiff_t>(Query(r).row) * call_.queries.heads + head] =
            m + std::log(l) + s_.q_poison[r];
      }
    }
  }

 private:
  static constexpr int64_t kRawBlock = 64;
  static constexpr float kHuge = 1e30f;  // queries beyond are no queries
  static constexpr int kDirectRows = 8;  // up to here codes are decoded again for every four rows

  template <class T>
  static T* Strided(T* base, ptrdiff_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
  }
  // Codes without a page's mean are summed as integers, unless everything is to be exact.
  bool Integers(const SideLayout& side) const {
    return call_.history->config().arithmetic != Arithmetic::kExact && side.storage == Storage::kCodes &&
           !side.page_mean && !view_.layout->latent;
  }
  bool Fast(const SideLayout& side) const {
    return Integers(side) && call_.history->config().arithmetic == Arithmetic::kFast && side.bits <= kFastBits;
  }
  const StepQuery& Query(int r) const { return visible_.query(r / group_); }
  const RotationOp& Rotation(Kv side) const { return call_.history->rotation(call_.layer, side, tile_.kv_head); }
  int Head(int r) const { return tile_.kv_head * group_ + r % group_; }

  // Chunks [begin, end): each that any query sees gets a state; visible(q, first, n) in columns of [first, first + n).
  template <class V, class C>
  SoftmaxState Fold(float* memory, int slots, int64_t begin, int64_t end, int64_t block_tokens, V&& visible,
                    C&& chunk_work) {
    StateFold fold(memory, slots, rows_, stride_, static_cast<int>(dv_));
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunkTokens;
      ChunkBlocks seen;
      for (int64_t at = 0; at < kChunkTokens; at += block_tokens) {
        const Visible any = visible_.Any(block_tokens, [&](int q) { return visible(q, first + at, block_tokens); });
        if (any.empty()) continue;
        ChunkBlocks::Block& block = seen.block[seen.count++];
        block.at = block.begin = at;
        block.end = at + block_tokens;
        block.any = any;
      }
      if (seen.count == 0) {
        fold.PushEmpty(0);
        continue;
      }
      chunk_work(first, seen, fold.Next());
      fold.Push(0);
    }
    return fold.Finish();
  }

  HWY_ATTR void RotateQuery(int r, const float* scaled, const float* mean, const float* scale) {
    float* rotated = s_.q_rotated + static_cast<size_t>(r) * dk_;
    const float dot = ScaleChannels(scaled, packed_dk_, mean, scale, rotated);
    std::copy(scaled + packed_dk_, scaled + dk_, rotated + packed_dk_);  // of a latent layer
    s_.q_mean[r] = s_.q_poison[r] == 0 ? dot : 0.0f;
    Rotation(Kv::kK).Apply(rotated, s_.row);
    if (integers_k_) QuantiseQuery(r, rotated);
  }

  // To integers whose sums with levels fit 32 bits.
  HWY_ATTR void QuantiseQuery(int r, const float* q) {
    const float limit = fast_k_ ? 127.0f : std::min(kWeightLimit, 2147483647.0f / static_cast<float>(kLift * dk_));
    const float largest = LargestMagnitude(q, dk_);
    const bool usable = s_.q_poison[r] == 0 && largest > kTiny && largest < kHuge;
    uint32_t* words = s_.q_words + static_cast<size_t>(r) * kRowStride;
    int32_t sum = 0;
    if (usable) {
      const float factor = limit / largest;
      sum = fast_k_ ? QuantiseRow<true>(q, dk_, factor, words) : QuantiseRow<false>(q, dk_, factor, words);
    } else {
      std::memset(words, 0, dk_ / (fast_k_ ? 4 : 2) * sizeof(uint32_t));
    }
    s_.q_start[r] = static_cast<int32_t>(0u - static_cast<uint32_t>(kLift) * static_cast<uint32_t>(sum));
    s_.q_unit[r] = usable ? largest / limit : 0.0f;
  }

  const uint8_t* Unit(int64_t page) const {
    return view_.pages[page].data() + static_cast<size_t>(tile_.kv_head) * view_.layout->unit_bytes;
  }

  HWY_ATTR void PackedChunk(int64_t first, ChunkBlocks chunk, const SoftmaxState& state) {
    const PageLayout& layout = *view_.layout;
    const uint8_t* units[kMaxBlocks + 1];
    for (int b = 0; b < chunk.count; ++b) units[b] = Unit((first + chunk.block[b].at) / layout.page_tokens);
    const int64_t behind = first + kChunkTokens;
    const bool more = behind < visible_.last().packed_end - view_.sink;
    units[chunk.count] = more ? Unit(behind / layout.page_tokens) : nullptr;
    chunk.positions = view_.positions + view_.sink + first;
    chunk.scaled = !layout.k.raw();
    chunk.integers = integers_k_;
    chunk.weights = !integers_v_ ? WeightKind::kFloats : fast_v_ ? WeightKind::kQuads : WeightKind::kPairs;
    for (int b = 0; b < chunk.count; ++b) {
      ChunkBlocks::Block& block = chunk.block[b];
      if (chunk.scaled) {
        LoadScales(layout.k, layout.latent, units[b], units[b + 1], s_.k_scale + block.at);
        block.largest_v_scale = LoadScales(layout.v, layout.latent, units[b], units[b + 1], s_.v_scale + block.at);
      }
      // What is read next is asked for meanwhile: the next page's K, behind the last one the first V.
      const uint8_t* next =
          b + 1 < chunk.count ? units[b + 1] + layout.k.codes_offset : units[0] + layout.v.codes_offset;
      Scores(block, units[b], next);
    }
    ToWeights(chunk, state, [&](int q) { return visible_.Packed(q, first, kChunkTokens); });
    for (int b = 0; b < chunk.count; ++b) {
      const uint8_t* next = b + 1 < chunk.count ? units[b + 1] + layout.v.codes_offset
                            : more              ? units[b + 1] + layout.k.codes_offset
                                                : nullptr;
      Values(chunk.block[b], b, units[b], next, state);
    }
  }

  HWY_ATTR void RawChunk(int64_t first, ChunkBlocks chunk, const SoftmaxState& state) {
    chunk.positions = view_.positions + first;
    for (int b = 0; b < chunk.count; ++b) {
      ChunkBlocks::Block& block = chunk.block[b];
      block.begin = block.at + (block.any.begin() & ~int64_t{15});
      block.end = block.at + ((block.any.end() + 15) & ~int64_t{15});
      LoadRawRows(first + block.at, block.begin - block.at, block.end - block.at, block.any, 0,
                  [&](int64_t t) { TransposeFour(s_.row, dk_, s_.k_tile + t, static_cast<size_t>(kRawBlock)); });
      const size_t column = static_cast<size_t>(block.begin - block.at);
      Multiply({s_.q_raw, dk_, s_.k_tile + column, static_cast<size_t>(kRawBlock), dk_, s_.scores + block.begin,
                kRowStride, false},
               static_cast<size_t>(rows_), static_cast<size_t>(block.end - block.begin));
    }
    ToWeights(chunk, state, [&](int q) { return visible_.Raw(q, first, kChunkTokens); });
    for (int b = 0; b < chunk.count; ++b) {
      const Visible& any = chunk.block[b].any;
      LoadRawRows(first + chunk.block[b].at, any.begin() & ~int64_t{3}, any.end(), any, 1, [&](int64_t t) {
        for (size_t i = 0; i < 4; ++i) {
          std::memcpy(s_.v_tile + (static_cast<size_t>(t) + i) * stride_, s_.row + i * dv_, dv_ * sizeof(float));
        }
      });
      AddFloats(chunk.block[b], state);
    }
  }

  // Rows of K (side 0) or V of tokens first + [begin, end), four at a time in s_.row; what nobody sees is zero:
  // products of what was left there would be denormal numbers, which take a hundred times as long. store(t): t is the
  // first one's token, begin and end multiples of 4.
  template <class F>
  HWY_ATTR void LoadRawRows(int64_t first, int64_t begin, int64_t end, const Visible& any, int side, F&& store) {
    const size_t d = side == 0 ? dk_ : dv_;
    for (int64_t t = begin; t < end; t += 4) {
      for (int64_t i = 0; i < 4; ++i) {
        float* row = s_.row + static_cast<size_t>(i) * d;
        if (any.sees(t + i)) {
          WidenF16(view_.raw[side].Row(first + t + i) + static_cast<size_t>(tile_.kv_head) * d, d, row);
        } else {  // before, behind, or packed tokens between sinks and window
          std::memset(row, 0, d * sizeof(float));
        }
      }
      store(t);
    }
  }

  template <class F>
  void ToWeights(ChunkBlocks& chunk, const SoftmaxState& state, F&& visible) {
    if (view_.removed) chunk.FindRemoved();
    weigher_.Weigh(
        chunk, rows_, state, [&](int r) { return visible(r / group_); }, [&](int r) { return Query(r).position; });
  }

  // Scores of a page. next: codes that are read after these.
  HWY_ATTR void Scores(const ChunkBlocks::Block& block, const uint8_t* unit, const uint8_t* next) {
    const SideLayout& k = view_.layout->k;
    float* scores = s_.scores + block.at;
    if (integers_k_) {
      const FactorRows queries = {s_.q_words, s_.q_start, 1, 0, dk_ / kBlockDepth};
      const SumsOut out = {scores, kRowStride};
      const uint8_t* codes = unit + k.codes_offset;
      return fast_k_ ? FastSums<QuadQueries>(k, codes, next, queries, s_.k_tile, out)
                     : Sums<Pairs>(k, codes, next, queries, s_.k_tile, out);
    }
    if (view_.layout->latent) {
      LoadLatentTile(*view_.layout, unit, s_.row, s_.k_tile);
    } else if (k.raw()) {
      LoadRawKTile(k, unit, s_.k_tile);
    } else if (k.storage == Storage::kRecords) {
      LoadRecordsKTile(k, unit, s_.row, s_.k_tile);
    } else {
      LoadLevels(k, unit + k.codes_offset, next, s_.k_tile, k.width());
    }
    if (k.page_mean) AddPageMean(k, Rotation(Kv::kK), unit, s_, s_.k_tile, k.width());
    Multiply({k.raw() ? s_.q_raw : s_.q_rotated, dk_, s_.k_tile, k.width(), dk_, scores, kRowStride, false},
             static_cast<size_t>(rows_), k.width());
  }

  // Weighted values of a page, block number b of the chunk, into the state.
  HWY_ATTR void Values(const ChunkBlocks::Block& block, int b, const uint8_t* unit, const uint8_t* next,
                       const SoftmaxState& state) {
    const SideLayout& v = view_.layout->v;
    const size_t begin = static_cast<size_t>(block.any.begin()), end = static_cast<size_t>(block.any.end());
    if (integers_v_) {
      const size_t words = fast_v_ ? QuadWeights::kWords : Pairs::kWords;
      const FactorRows weights = {
          reinterpret_cast<const uint32_t*>(s_.scores) + static_cast<size_t>(block.at) / kBlockDepth * words,
          s_.w_start + b, kMaxBlocks, begin / kBlockDepth, (end + kBlockDepth - 1) / kBlockDepth};
      const SumsOut out = {state.acc, stride_, s_.factor + b, kMaxBlocks};
      const uint8_t* codes = unit + v.codes_offset;
      return fast_v_ ? FastSums<QuadWeights>(v, codes, next, weights, s_.v_tile, out)
                     : Sums<Pairs>(v, codes, next, weights, s_.v_tile, out);
    }
    if (view_.layout->latent) {
      LoadLatentTile(*view_.layout, unit, s_.row, s_.k_tile);
      TransposeTile(s_.k_tile, dv_, v.depth(), s_.v_tile, stride_);
    } else if (v.raw()) {
      LoadRawVTile(v, unit, begin, end, s_.v_tile, stride_);
    } else if (v.storage == Storage::kRecords) {
      LoadRecordsVTile(v, unit, begin, end, s_.v_tile, stride_);
    } else {
      LoadLevels(v, unit + v.codes_offset, next, s_.v_tile, stride_);
    }
    if (v.page_mean) AddPageMean(v, Rotation(Kv::kV), unit, s_, s_.v_tile, stride_);
    AddFloats(block, state);
  }

  // Weights times the rows of v_tile that anyone sees.
  HWY_ATTR void AddFloats(const ChunkBlocks::Block& block, const SoftmaxState& state) {
    const size_t begin = static_cast<size_t>(block.any.begin()), end = static_cast<size_t>(block.any.end());
    Multiply({s_.scores + static_cast<size_t>(block.at) + begin, kRowStride, s_.v_tile + begin * stride_, stride_,
              end - begin, state.acc, stride_, true},
             static_cast<size_t>(rows_), stride_);
  }
  template <class Kind>
  HWY_ATTR void Sums(const SideLayout& side, const uint8_t* codes, const uint8_t* next, const FactorRows& x,
                     float* tile, const SumsOut& out) {
    WithBits(side.bits, [&](auto bits) HWY_ATTR { SumsOf<Kind, bits>(side, codes, next, x, tile, out); });
  }
  template <class Kind>
  HWY_ATTR void FastSums(const SideLayout& side, const uint8_t* codes, const uint8_t* next, const FactorRows& x,
                         float* tile, const SumsOut& out) {
    WithBits(side.bits, [&](auto bits) HWY_ATTR {
      if constexpr (bits <= kFastBits) SumsOf<Kind, bits>(side, codes, next, x, tile, out);
    });
  }
  template <class Kind, int kBits>
  HWY_ATTR void SumsOf(const SideLayout& side, const uint8_t* codes, const uint8_t* next, const FactorRows& x,
                       float* tile, const SumsOut& out) {
    const size_t rows = static_cast<size_t>(rows_), depth = side.depth(), width = side.width();
    if (rows_ <= kDirectRows) {
      return IntegerProduct<Kind>(CodeSource<kBits>(codes, depth, next), x, rows, width, out);
    }
    uint8_t* decoded = reinterpret_cast<uint8_t*>(tile);
    DecodeTile<Kind, kBits>(codes, depth, width, next, decoded);
    IntegerProduct<Kind>(TileSource(decoded, depth), x, rows, width, out);
  }

  const AttendCall& call_;
  const AttendTile& tile_;
  AttendScratch& s_;
  const StepSequence& part_;
  const LayerView view_;
  const TileVisibility visible_;
  const Weigher weigher_;
  const int group_, rows_;
  const size_t dk_, packed_dk_, dv_, stride_;
  // Packed tokens: sums of integers rather than of fp32; 8-bit queries; 8-bit weights.
  const bool integers_k_, integers_v_, fast_k_, fast_v_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
