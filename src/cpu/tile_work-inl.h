// SPDX-License-Identifier: Apache-2.0
// The attention of one tile of queries: packed pages and raw rows into softmax states, states into outputs. Per-target
// include guard.

#if defined(TERSEKV_CPU_TILE_WORK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_TILE_WORK_INL_H_
#undef TERSEKV_CPU_TILE_WORK_INL_H_
#else
#define TERSEKV_CPU_TILE_WORK_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "src/cpu/attend.h"
#include "src/cpu/multiply-inl.h"
#include "src/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Tokens of a block that one row sees: [a0, a1) and [b0, b1), relative to the block.
struct Visible {
  int64_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
  bool empty() const { return a0 >= a1 && b0 >= b1; }
  bool all(int64_t n) const { return (a0 <= 0 && a1 >= n) || (b0 <= 0 && b1 >= n) || (a0 <= 0 && a1 >= b0 && b1 >= n); }
};

// One tile of queries at work: what it needs of its layer, sequence and queries.
class TileWork {
 public:
  TileWork(const AttendCall& call, const AttendTile& tile, AttendScratch* scratch)
      : call_(call),
        tile_(tile),
        s_(*scratch),
        part_(call.history->step()[static_cast<size_t>(tile.part)]),
        view_(call.history->View(call.layer, part_)),
        group_(call.plan->group()),
        rows_(tile.queries * group_),
        dk_(static_cast<size_t>(view_.layout->k.d)),
        dv_(static_cast<size_t>(view_.layout->v.d)),
        stride_(call.plan->stride()) {}

  int rows() const { return rows_; }

  void LoadQueries() {
    const size_t group = static_cast<size_t>(group_);
    const RotationOp& rotation = call_.history->rotation(call_.layer, Kv::kK, tile_.kv_head);
    const float* mean = nullptr;
    const float* scale = nullptr;
    if (view_.stats != nullptr) {
      const size_t at = static_cast<size_t>(tile_.kv_head) * dk_;
      mean = view_.stats->k.mean.data() + at;
      scale = view_.stats->k.scale.empty() ? nullptr : view_.stats->k.scale.data() + at;
    }
    for (int r = 0; r < rows_; ++r) {
      const int head = tile_.kv_head * group_ + static_cast<int>(static_cast<size_t>(r) % group);
      const float* q =
          Strided(call_.queries.data, Query(r).row * call_.queries.token_stride + head * call_.queries.head_stride);
      float* raw = s_.q_raw + static_cast<size_t>(r) * dk_;
      float* rotated = s_.q_rotated + static_cast<size_t>(r) * dk_;
      float dot = 0;
      for (size_t c = 0; c < dk_; ++c) {
        raw[c] = q[c] * call_.params.scale;
        rotated[c] = scale != nullptr ? raw[c] * scale[c] : raw[c];
        if (mean != nullptr) dot += raw[c] * mean[c];
      }
      s_.q_mean[r] = dot;
      s_.slope[r] =
          call_.params.max_alibi_bias > 0 ? AlibiSlope(head, call_.queries.heads, call_.params.max_alibi_bias) : 0.0f;
      rotation.Apply(rotated, s_.row);
    }
    for (int q = 0; q < tile_.queries; ++q) {
      first_seen_[q] = FirstSeen(QueryAt(q));
    }
  }

  // Packed chunks [begin, end) joined to one state.
  SoftmaxState Packed(int64_t begin, int64_t end) {
    const int64_t page_tokens = view_.layout->page_tokens;
    StateFold fold(s_.packed_fold, rows_, stride_, static_cast<int>(dv_));
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t chunk_end = (chunk + 1) * kChunkTokens;
      bool seen = false;
      SoftmaxState state;
      for (int64_t first = chunk * kChunkTokens; first < chunk_end; first += page_tokens) {
        if (!SeenPacked(first, page_tokens)) continue;
        if (!seen) state = fold.Next();
        seen = true;
        PackedPage(first / page_tokens, state);
      }
      if (seen) {
        fold.Push(0);
      } else {
        fold.PushEmpty(0);
      }
    }
    return fold.Finish();
  }

  // The raw tokens (sinks and window) joined to one state.
  SoftmaxState Raw() {
    StateFold fold(s_.raw_fold, rows_, stride_, static_cast<int>(dv_));
    if (!view_.layout->k.raw()) {
      const int64_t chunks = QueryAt(tile_.queries - 1).order / kChunkTokens + 1;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        bool seen = false;
        SoftmaxState state;
        for (int64_t first = chunk * kChunkTokens; first < (chunk + 1) * kChunkTokens; first += kRawBlock) {
          if (!SeenRaw(first)) continue;
          if (!seen) state = fold.Next();
          seen = true;
          RawBlock(first, state);
        }
        if (seen) {
          fold.Push(0);
        } else {
          fold.PushEmpty(0);
        }
      }
    }
    return fold.Finish();
  }

  // Joins both, undoes the value transform, writes the outputs.
  void Write(const SoftmaxState& packed, const SoftmaxState& raw) {
    const RotationOp& rotation = call_.history->rotation(call_.layer, Kv::kV, tile_.kv_head);
    const float* mean =
        view_.stats != nullptr ? view_.stats->v.mean.data() + static_cast<size_t>(tile_.kv_head) * dv_ : nullptr;
    for (int r = 0; r < rows_; ++r) {
      const int head = tile_.kv_head * group_ + r % group_;
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
      const float* acc_raw = raw.acc + static_cast<size_t>(r) * stride_;
      for (size_t c = 0; c < dv_; ++c) {
        const float shift = mean != nullptr ? mean[c] * lp : 0.0f;
        o[c] = (acc[c] * wp + shift + acc_raw[c] * wr) * inverse;
      }
      if (call_.queries.lse != nullptr) {
        call_.queries.lse[static_cast<ptrdiff_t>(Query(r).row) * call_.queries.heads + head] = m + std::log(l);
      }
    }
  }

 private:
  static constexpr int64_t kRawBlock = 64;
  static constexpr int kMaxQueries = 64;

  template <class T>
  static T* Strided(T* base, ptrdiff_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
  }
  const StepQuery& QueryAt(int q) const { return part_.queries[static_cast<size_t>(tile_.first_query + q)]; }
  const StepQuery& Query(int r) const { return QueryAt(r / group_); }

  // First order inside the query's sliding window.
  int64_t FirstSeen(const StepQuery& query) const {
    if (call_.params.window <= 0) return 0;
    const int32_t* begin = view_.positions;
    return std::upper_bound(begin, begin + query.order + 1, query.position - call_.params.window) - begin;
  }

  // Packed tokens [first, first + n) that query q sees, relative to first (indices count from the first after the
  // sinks).
  Visible PackedVisible(int q, int64_t first) const {
    Visible v;
    v.a0 = std::max<int64_t>(first_seen_[q] - view_.sink, 0) - first;
    v.a1 = QueryAt(q).packed_end - view_.sink - first;
    return v;
  }
  Visible RawVisible(int q, int64_t first) const {
    const StepQuery& query = QueryAt(q);
    Visible v;
    v.a0 = first_seen_[q] - first;
    v.a1 = std::min(view_.sink, query.order + 1) - first;
    v.b0 = std::max({query.packed_end, view_.sink, first_seen_[q]}) - first;
    v.b1 = query.order + 1 - first;
    return v;
  }
  static void Clip(Visible* v, int64_t n) {
    v->a0 = std::max<int64_t>(v->a0, 0);
    v->a1 = std::min(v->a1, n);
    v->b0 = std::max<int64_t>(v->b0, 0);
    v->b1 = std::min(v->b1, n);
  }
  // Union over the tile's queries of what they see in a block, false when nothing.
  template <class F>
  bool Union(F&& visible, int64_t n, Visible* all) const {
    *all = {n, 0, n, 0};
    for (int q = 0; q < tile_.queries; ++q) {
      Visible v = visible(q);
      Clip(&v, n);
      if (v.a0 < v.a1) all->a0 = std::min(all->a0, v.a0), all->a1 = std::max(all->a1, v.a1);
      if (v.b0 < v.b1) all->b0 = std::min(all->b0, v.b0), all->b1 = std::max(all->b1, v.b1);
    }
    return !all->empty();
  }
  bool SeenPacked(int64_t first, int64_t n) const {
    Visible all;
    return Union([&](int q) { return PackedVisible(q, first); }, n, &all);
  }
  bool SeenRaw(int64_t first) const {
    Visible all;
    return Union([&](int q) { return RawVisible(q, first); }, kRawBlock, &all);
  }

  HWY_ATTR void PackedPage(int64_t page, const SoftmaxState& state) {
    const PageLayout& layout = *view_.layout;
    const int64_t n = layout.page_tokens, first = page * n;
    const uint8_t* unit = view_.pages[page].data() + static_cast<size_t>(tile_.kv_head) * layout.unit_bytes;
    Visible all;
    Union([&](int q) { return PackedVisible(q, first); }, n, &all);
    LoadKTile(layout.k, unit, s_.k_tile);
    LoadVTile(layout.v, unit, static_cast<size_t>(all.a0), static_cast<size_t>(all.a1), s_.v_tile, stride_);
    const bool raw = layout.k.raw();
    Accumulate(
        [&](int q) { return PackedVisible(q, first); }, n, all.a0, all.a1, first + view_.sink,
        raw ? s_.q_raw : s_.q_rotated, raw ? nullptr : reinterpret_cast<const uint16_t*>(unit + layout.k.scales_offset),
        layout.v.raw() ? nullptr : reinterpret_cast<const uint16_t*>(unit + layout.v.scales_offset), !raw, state);
  }

  HWY_ATTR void RawBlock(int64_t first, const SoftmaxState& state) {
    Visible all;
    Union([&](int q) { return RawVisible(q, first); }, kRawBlock, &all);
    const int64_t begin = all.a0 < all.a1 ? std::min(all.a0, all.b0) : all.b0;
    const int64_t end = all.b0 < all.b1 ? std::max(all.a1, all.b1) : all.a1;
    std::memset(s_.k_tile, 0, dk_ * static_cast<size_t>(kRawBlock) * sizeof(float));
    for (int64_t t = begin; t < end; ++t) {
      float* v_row = s_.v_tile + static_cast<size_t>(t) * stride_;
      const bool wanted = (t >= all.a0 && t < all.a1) || (t >= all.b0 && t < all.b1);
      if (!wanted) {  // packed tokens between sinks and window
        std::memset(v_row, 0, stride_ * sizeof(float));
        continue;
      }
      const size_t head = static_cast<size_t>(tile_.kv_head);
      WidenF16(view_.raw[0].Row(first + t) + head * dk_, dk_, s_.row);
      for (size_t c = 0; c < dk_; ++c)
        s_.k_tile[c * static_cast<size_t>(kRawBlock) + static_cast<size_t>(t)] = s_.row[c];
      WidenF16(view_.raw[1].Row(first + t) + head * dv_, dv_, v_row);
    }
    Accumulate([&](int q) { return RawVisible(q, first); }, kRawBlock, begin, end, first, s_.q_raw, nullptr, nullptr,
               false, state);
  }

  // One block of n tokens (order of its token 0: `order`) into the state. Tiles are loaded; tokens outside [begin, end)
  // are seen by nobody.
  template <class F>
  HWY_ATTR void Accumulate(F&& visible, int64_t n, int64_t begin, int64_t end, int64_t order, const float* q,
                           const uint16_t* k_scales, const uint16_t* v_scales, bool add_mean,
                           const SoftmaxState& state) {
    const size_t width = static_cast<size_t>(n), rows = static_cast<size_t>(rows_);
    Multiply({q, dk_, s_.k_tile, width, dk_, s_.scores, width, nullptr}, rows, width);
    for (int r = 0; r < rows_; ++r) {
      Visible v = visible(r / group_);
      Clip(&v, n);
      Weigh(r, v, n, order, k_scales, v_scales, add_mean ? s_.q_mean[r] : 0.0f, state);
    }
    Multiply({s_.scores + begin, width, s_.v_tile + static_cast<size_t>(begin) * stride_, stride_,
              static_cast<size_t>(end - begin), state.acc, stride_, s_.alpha},
             rows, stride_);
  }

  // Scores of one row -> weights; m, l and alpha follow.
  HWY_ATTR void Weigh(int r, const Visible& v, int64_t n, int64_t order, const uint16_t* k_scales,
                      const uint16_t* v_scales, float mean_score, const SoftmaxState& state) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<uint16_t, DF> d16;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    float* scores = s_.scores + static_cast<ptrdiff_t>(r) * n;
    const bool masked = !v.all(n);
    const auto minus_infinity = hn::Set(d, kMinusInfinity);
    const float cap = call_.params.softcap, slope = s_.slope[r];
    auto largest = minus_infinity;
    for (int64_t t = 0; t < n; t += lanes) {
      auto score = hn::LoadU(d, scores + t);
      if (k_scales != nullptr) {
        const auto bits = hn::PromoteTo(hn::RebindToUnsigned<DF>(), hn::LoadU(d16, k_scales + t));
        score = hn::MulAdd(score, hn::BitCast(d, hn::ShiftLeft<16>(bits)), hn::Set(d, mean_score));
      }
      if (cap > 0) score = hn::Mul(hn::Set(d, cap), hn::Tanh(d, hn::Mul(score, hn::Set(d, 1.0f / cap))));
      if (slope > 0) {
        const auto distance = hn::Sub(hn::LoadU(di, view_.positions + order + t), hn::Set(di, Query(r).position));
        score = hn::MulAdd(hn::Set(d, slope), hn::ConvertTo(d, distance), score);
      }
      if (masked) score = hn::IfThenElse(Mask(v, t), score, minus_infinity);
      hn::StoreU(score, d, scores + t);
      largest = hn::Max(largest, score);
    }
    const float block_max = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (block_max == kMinusInfinity) {
      s_.alpha[r] = 1.0f;
      std::memset(scores, 0, static_cast<size_t>(n) * sizeof(float));
      return;
    }
    const float m = std::max(state.m[r], block_max);
    s_.alpha[r] = state.l[r] > 0 ? std::exp(state.m[r] - m) : 0.0f;
    auto sum = hn::Zero(d);
    for (int64_t t = 0; t < n; t += lanes) {
      auto p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), hn::Set(d, m)));
      if (masked) p = hn::IfThenElseZero(Mask(v, t), p);
      sum = hn::Add(sum, p);
      if (v_scales != nullptr) {
        const auto bits = hn::PromoteTo(hn::RebindToUnsigned<DF>(), hn::LoadU(d16, v_scales + t));
        p = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<16>(bits)));
      }
      hn::StoreU(p, d, scores + t);
    }
    state.l[r] = state.l[r] * s_.alpha[r] + hn::GetLane(hn::SumOfLanes(d, sum));
    state.m[r] = m;
  }

  static HWY_ATTR hn::Mask<DF> Mask(const Visible& v, int64_t t) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const auto lane = hn::Iota(di, static_cast<int32_t>(t));
    const auto in = [&](int64_t lo, int64_t hi) HWY_ATTR {
      return hn::And(hn::VecFromMask(di, hn::Gt(lane, hn::Set(di, static_cast<int32_t>(lo - 1)))),
                     hn::VecFromMask(di, hn::Lt(lane, hn::Set(di, static_cast<int32_t>(hi)))));
    };
    return hn::RebindMask(d, hn::MaskFromVec(hn::Or(in(v.a0, v.a1), in(v.b0, v.b1))));
  }

  const AttendCall& call_;
  const AttendTile& tile_;
  AttendScratch& s_;
  const StepSequence& part_;
  const LayerView view_;
  const int group_, rows_;
  const size_t dk_, dv_, stride_;
  int64_t first_seen_[kMaxQueries] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
