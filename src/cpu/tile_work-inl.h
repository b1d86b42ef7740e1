// SPDX-License-Identifier: Apache-2.0
// The attention of one tile of queries: packed pages and raw rows into softmax states, states into outputs. Per-target
// include guard.

#if defined(TERSEKV_CPU_TILE_WORK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_TILE_WORK_INL_H_
#undef TERSEKV_CPU_TILE_WORK_INL_H_
#else
#define TERSEKV_CPU_TILE_WORK_INL_H_
#endif

#include "hwy/highway.h"
#include "src/cpu/attend.h"
#include "src/cpu/multiply-inl.h"
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
        dk_(static_cast<size_t>(view_.layout->k.d)),
        dv_(static_cast<size_t>(view_.layout->v.d)),
        stride_(call.plan->stride()),
        integers_(call.history->config().arithmetic == Arithmetic::kInt16 && !view_.layout->k.raw()) {}

  int rows() const { return rows_; }

  // packed, raw: which tokens will be attended.
  HWY_ATTR void LoadQueries(bool packed, bool raw) {
    packed = packed && !view_.layout->k.raw();
    raw = raw || view_.layout->k.raw();
    const float* mean = nullptr;
    const float* scale = nullptr;
    if (view_.stats != nullptr) {
      const size_t at = static_cast<size_t>(tile_.kv_head) * dk_;
      mean = view_.stats->k.mean.data() + at;
      scale = view_.stats->k.scale.empty() ? nullptr : view_.stats->k.scale.data() + at;
    }
    for (int r = 0; r < rows_; ++r) {
      const int head = Head(r);
      const float* q =
          Strided(call_.queries.data, Query(r).row * call_.queries.token_stride + head * call_.queries.head_stride);
      float* scaled = s_.q_raw + static_cast<size_t>(r) * dk_;
      for (size_t c = 0; c < dk_; ++c) scaled[c] = q[c] * call_.params.scale;
      s_.slope[r] =
          call_.params.max_alibi_bias > 0 ? AlibiSlope(head, call_.queries.heads, call_.params.max_alibi_bias) : 0.0f;
      if (packed) RotateQuery(r, scaled, mean, scale);
    }
  }

  // Packed chunks [begin, end) joined to one state.
  SoftmaxState Packed(int64_t begin, int64_t end) {
    return Fold(s_.packed_fold, begin, end, view_.layout->page_tokens,
                [&](int64_t first, int64_t n) { return visible_.AnyPacked(first, n); },
                [&](int64_t first, const Visible& any, const SoftmaxState& state) { PackedPage(first, any, state); });
  }

  // The raw tokens (sinks and window) joined to one state.
  SoftmaxState Raw() {
    const int64_t chunks = view_.layout->k.raw() ? 0 : visible_.last().order / kChunkTokens + 1;
    return Fold(s_.raw_fold, 0, chunks, kRawBlock,
                [&](int64_t first, int64_t n) { return visible_.AnyRaw(first, n); },
                [&](int64_t first, const Visible& any, const SoftmaxState& state) { RawBlock(first, any, state); });
  }

  // Joins both, undoes the value transform, writes the outputs.
  void Write(const SoftmaxState& packed, const SoftmaxState& raw) {
    const RotationOp& rotation = call_.history->rotation(call_.layer, Kv::kV, tile_.kv_head);
    const float* mean =
        view_.stats != nullptr ? view_.stats->v.mean.data() + static_cast<size_t>(tile_.kv_head) * dv_ : nullptr;
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
  static constexpr int kDirectRows = 8;  // up to here codes are decoded again for every four rows

  template <class T>
  static T* Strided(T* base, ptrdiff_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
  }
  const StepQuery& Query(int r) const { return visible_.query(r / group_); }
  int Head(int r) const { return tile_.kv_head * group_ + r % group_; }

  // Chunks [begin, end) in blocks of n tokens: those that any query sees go into their chunk's state.
  template <class Any, class Block>
  SoftmaxState Fold(float* memory, int64_t begin, int64_t end, int64_t n, Any&& any, Block&& block) {
    StateFold fold(memory, rows_, stride_, static_cast<int>(dv_));
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      bool seen = false;
      SoftmaxState state;
      for (int64_t first = chunk * kChunkTokens; first < (chunk + 1) * kChunkTokens; first += n) {
        const Visible visible = any(first, n);
        if (visible.empty()) continue;
        if (!seen) state = fold.Next();
        seen = true;
        block(first, visible, state);
      }
      if (seen) {
        fold.Push(0);
      } else {
        fold.PushEmpty(0);
      }
    }
    return fold.Finish();
  }

  HWY_ATTR void RotateQuery(int r, const float* scaled, const float* mean, const float* scale) {
    float* rotated = s_.q_rotated + static_cast<size_t>(r) * dk_;
    float dot = 0;
    for (size_t c = 0; c < dk_; ++c) {
      rotated[c] = scale != nullptr ? scaled[c] * scale[c] : scaled[c];
      if (mean != nullptr) dot += scaled[c] * mean[c];
    }
    s_.q_mean[r] = dot;
    call_.history->rotation(call_.layer, Kv::kK, tile_.kv_head).Apply(rotated, s_.row);
    if (integers_) QuantiseQuery(r, rotated);
  }

  // To 16-bit pairs whose sums with levels fit 32 bits.
  HWY_ATTR void QuantiseQuery(int r, const float* q) {
    const float limit = std::min(kWeightLimit, 2147483647.0f / static_cast<float>(kLift * dk_));
    float largest = 0;
    for (size_t c = 0; c < dk_; ++c) largest = std::max(largest, std::fabs(q[c]));
    const float factor = largest > 0 ? limit / largest : 0.0f;
    uint32_t* pairs = s_.q_pairs + static_cast<size_t>(r) * dk_ / 2;
    int32_t sum = 0;
    const auto quantised = [&](size_t c) { return static_cast<int32_t>(std::nearbyint(q[c] * factor)); };
    for (size_t m = 0; m < dk_; m += kBlockDepth) {
      for (size_t j = 0; j < kPairStride; ++j) {
        const int32_t low = quantised(m + j), high = quantised(m + j + kPairStride);
        sum += low + high;
        *pairs++ = (static_cast<uint32_t>(low) & 0xffffu) | static_cast<uint32_t>(high) << 16;
      }
    }
    s_.q_start[r] = static_cast<int32_t>(0u - static_cast<uint32_t>(kLift) * static_cast<uint32_t>(sum));
    s_.q_unit[r] = largest / limit;
  }

  HWY_ATTR void PackedPage(int64_t first, const Visible& any, const SoftmaxState& state) {
    const PageLayout& layout = *view_.layout;
    const int64_t page = first / layout.page_tokens;
    const size_t at = static_cast<size_t>(tile_.kv_head) * layout.unit_bytes;
    const uint8_t* unit = view_.pages[page].data() + at;
    const bool last = first + layout.page_tokens >= visible_.last().packed_end - view_.sink;
    const uint8_t* next = last ? nullptr : view_.pages[page + 1].data() + at;
    ScoredBlock block;
    block.n = block.end = layout.page_tokens;
    block.positions = view_.positions + view_.sink + first;
    block.integers = integers_;
    if (layout.k.raw()) {
      LoadRawKTile(layout.k, unit, s_.k_tile);
      LoadRawVTile(layout.v, unit, static_cast<size_t>(any.begin()), static_cast<size_t>(any.end()), s_.v_tile,
                   stride_);
    } else {
      WidenScales(layout.k, unit, s_.k_scale);
      block.largest_v_scale = WidenScales(layout.v, unit, s_.v_scale);
      block.k_scale = s_.k_scale;
      block.v_scale = s_.v_scale;
    }
    const auto visible = [&](int q) { return visible_.Packed(q, first, block.n); };
    if (integers_) return AddIntegers(block, unit, next, any, visible, state);
    if (!layout.k.raw()) {
      LoadLevels(layout.k, unit, next, s_.k_tile, layout.k.width());
      LoadLevels(layout.v, unit, next, s_.v_tile, stride_);
    }
    AddFloats(block, layout.k.raw() ? s_.q_raw : s_.q_rotated, any, visible, state);
  }

  HWY_ATTR void RawBlock(int64_t first, const Visible& any, const SoftmaxState& state) {
    const size_t head = static_cast<size_t>(tile_.kv_head);
    ScoredBlock block;
    block.n = kRawBlock;
    block.begin = any.begin() & ~int64_t{15};
    block.end = (any.end() + 15) & ~int64_t{15};
    block.positions = view_.positions + first;
    for (int64_t t = any.begin() & ~int64_t{3}; t < any.end(); t += 4) {
      for (int64_t i = 0; i < 4; ++i) {
        float* k_row = s_.row + static_cast<size_t>(i) * dk_;
        float* v_row = s_.v_tile + static_cast<size_t>(t + i) * stride_;
        if (any.sees(t + i)) {
          WidenF16(view_.raw[0].Row(first + t + i) + head * dk_, dk_, k_row);
          WidenF16(view_.raw[1].Row(first + t + i) + head * dv_, dv_, v_row);
        } else {  // before, behind, or packed tokens between sinks and window
          std::memset(k_row, 0, dk_ * sizeof(float));
          std::memset(v_row, 0, stride_ * sizeof(float));
        }
      }
      TransposeFour(s_.row, dk_, s_.k_tile + t, static_cast<size_t>(kRawBlock));
    }
    AddFloats(block, s_.q_raw, any, [&](int q) { return visible_.Raw(q, first, kRawBlock); }, state);
  }

  // bf16 -> fp32; the largest.
  HWY_ATTR float WidenScales(const SideLayout& side, const uint8_t* unit, float* out) const {
    const DF d;
    const hn::Rebind<uint16_t, DF> d16;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(unit + side.scales_offset);
    auto largest = hn::Zero(d);
    for (size_t t = 0; t < static_cast<size_t>(side.page_tokens); t += hn::Lanes(d)) {
      const auto bits = hn::PromoteTo(hn::RebindToUnsigned<DF>(), hn::LoadU(d16, scales + t));
      const auto value = hn::BitCast(d, hn::ShiftLeft<16>(bits));
      largest = hn::Max(largest, value);
      hn::StoreU(value, d, out + t);
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  template <class F>
  void ToWeights(const ScoredBlock& block, F&& visible, const SoftmaxState& state) {
    for (int r = 0; r < rows_; ++r) weigher_.Score(block, r, visible(r / group_), Query(r).position);
    weigher_.Rescale(block, rows_, state);
    for (int r = 0; r < rows_; ++r) weigher_.Weigh(block, r, visible(r / group_), state);
  }

  // A block whose tiles are loaded into the state.
  template <class F>
  HWY_ATTR void AddFloats(const ScoredBlock& block, const float* q, const Visible& any, F&& visible,
                          const SoftmaxState& state) {
    const size_t width = static_cast<size_t>(block.n), rows = static_cast<size_t>(rows_);
    const size_t first = static_cast<size_t>(block.begin);
    Multiply({q, dk_, s_.k_tile + first, width, dk_, s_.scores + first, width, nullptr}, rows,
             static_cast<size_t>(block.end) - first);
    ToWeights(block, visible, state);
    const size_t begin = static_cast<size_t>(any.begin());
    Multiply({s_.scores + begin, width, s_.v_tile + begin * stride_, stride_, static_cast<size_t>(any.end()) - begin,
              state.acc, stride_, s_.alpha},
             rows, stride_);
  }

  // A packed page into the state.
  template <class F>
  HWY_ATTR void AddIntegers(const ScoredBlock& block, const uint8_t* unit, const uint8_t* next, const Visible& any,
                            F&& visible, const SoftmaxState& state) {
    const size_t n = static_cast<size_t>(block.n);
    Sums(view_.layout->k, unit, next, {s_.q_pairs, dk_ / 2, s_.q_start, 0, dk_ / kBlockDepth}, s_.k_tile,
         {s_.scores, n, nullptr, nullptr});
    ToWeights(block, visible, state);
    const PairRows weights = {s_.w_pairs, n / 2, s_.w_start, static_cast<size_t>(any.begin()) / kBlockDepth,
                              (static_cast<size_t>(any.end()) + kBlockDepth - 1) / kBlockDepth};
    Sums(view_.layout->v, unit, next, weights, s_.v_tile, {state.acc, stride_, s_.alpha, s_.beta});
  }

  HWY_ATTR void Sums(const SideLayout& side, const uint8_t* unit, const uint8_t* next, const PairRows& x, float* tile,
                     const SumsOut& out) {
    const size_t rows = static_cast<size_t>(rows_), depth = side.depth(), width = side.width();
    const uint8_t* codes = unit + side.codes_offset;
    const uint8_t* ahead = next != nullptr ? next + side.codes_offset : nullptr;
    WithBits(side.bits, [&](auto bits) HWY_ATTR {
      if (rows_ <= kDirectRows) return PairProduct(CodeSource<bits>(codes, depth, ahead), x, rows, width, out);
      uint16_t* pairs = reinterpret_cast<uint16_t*>(tile);
      DecodePairs<bits>(codes, depth, width, ahead, pairs);
      PairProduct(PairSource(pairs, depth), x, rows, width, out);
    });
  }

  const AttendCall& call_;
  const AttendTile& tile_;
  AttendScratch& s_;
  const StepSequence& part_;
  const LayerView view_;
  const TileVisibility visible_;
  const Weigher weigher_;
  const int group_, rows_;
  const size_t dk_, dv_, stride_;
  const bool integers_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
