// SPDX-License-Identifier: Apache-2.0
// Scores of a block of tokens -> softmax weights of each row, and what that does to its running maximum and sum.
// Per-target include guard.

#if defined(TERSEKV_CPU_WEIGH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_WEIGH_INL_H_
#undef TERSEKV_CPU_WEIGH_INL_H_
#else
#define TERSEKV_CPU_WEIGH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "src/attention/softmax_state.h"
#include "src/cpu/attend.h"
#include "src/cpu/visible.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kWeightLimit = 32767;  // of 16-bit weights

// exp(x) for x <= 0, relative error below 5e-6: far below what a 16-bit weight can hold.
HWY_INLINE VF ExpForWeights(VF x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const VF z = hn::Max(hn::Mul(x, hn::Set(d, 1.44269504f)), hn::Set(d, -126.0f));
  const VF whole = hn::Round(z);
  const VF f = hn::Sub(z, whole);
  // 2^f on [-0.5, 0.5], minimax of degree 4 with p(0) = 1
  VF p = hn::MulAdd(hn::Set(d, 9.678e-3f), f, hn::Set(d, 5.5836e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40222e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931436e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::ConvertTo(di, whole))));
}

// A block of n tokens; scores are in scratch.scores, [rows][n].
struct ScoredBlock {
  int64_t n = 0;
  int64_t begin = 0, end = 0;  // columns that were computed, multiples of 16
  const int32_t* positions = nullptr;  // [n]
  const float* k_scale = nullptr;      // [n], null for raw rows
  const float* v_scale = nullptr;
  float largest_v_scale = 0;
  bool integers = false;  // scores are integer sums, weights become 16-bit pairs
};

class Weigher {
 public:
  Weigher(AttendScratch* scratch, float softcap) : s_(*scratch), softcap_(softcap) {}

  // For row r, whose query stands at `position` and sees v: scores of the model, -inf where not seen.
  HWY_ATTR void Score(const ScoredBlock& block, int r, const Visible& v, int32_t position) const {
    if (v.all(block.n) && softcap_ <= 0 && s_.slope[r] <= 0) return ScoreRow<false>(block, r, v, position);
    ScoreRow<true>(block, r, v, position);
  }

  // What the block's maxima do to the states: s_.alpha scales what is there, s_.beta what comes.
  HWY_ATTR void Rescale(const ScoredBlock& block, int rows, const SoftmaxState& state) const {
    constexpr float kNothing = -1e30f;
    for (int r = 0; r < rows; ++r) {
      const float before = state.m[r], here = s_.reference[r];
      const float m = std::max(before, here);
      s_.alpha[r] = state.l[r] > 0 ? before - m : kNothing;
      s_.beta[r] = here > kMinusInfinity ? here - m : kNothing;
      state.m[r] = m;
      if (!block.integers && here > kMinusInfinity) s_.reference[r] = m;
    }
    const DF d;
    for (int r = 0; r < rows; r += static_cast<int>(hn::Lanes(d))) {
      hn::StoreU(hn::Exp(d, hn::LoadU(d, s_.alpha + r)), d, s_.alpha + r);
      hn::StoreU(hn::Exp(d, hn::LoadU(d, s_.beta + r)), d, s_.beta + r);
    }
  }

  // Weights of row r in place of its scores, or as pairs; the row's sum follows.
  HWY_ATTR void Weigh(const ScoredBlock& block, int r, const Visible& v, const SoftmaxState& state) const {
    if (s_.reference[r] == kMinusInfinity) return Nothing(block, r);
    const bool masked = !v.all(block.n);
    if (block.integers) {
      masked ? WeighPairs<true>(block, r, v, state) : WeighPairs<false>(block, r, v, state);
    } else {
      WeighFloats(block, r, v, masked, state);
    }
  }

 private:
  template <bool kSpecial>
  HWY_INLINE void ScoreRow(const ScoredBlock& block, int r, const Visible& v, int32_t position) const {
    const DF d;
    const hn::RebindToSigned<DF> di;
    float* scores = s_.scores + static_cast<ptrdiff_t>(r) * block.n;
    const VF unit = hn::Set(d, block.integers ? s_.q_unit[r] : 1.0f), mean = hn::Set(d, s_.q_mean[r]);
    const VF lowest = hn::Set(d, kMinusInfinity);
    const VF cap = hn::Set(d, softcap_), inverse_cap = hn::Set(d, softcap_ > 0 ? 1.0f / softcap_ : 0.0f);
    const bool masked = kSpecial && !v.all(block.n);
    VF largest = lowest;
    for (int64_t t = block.begin; t < block.end; t += static_cast<int64_t>(hn::Lanes(d))) {
      VF score = hn::LoadU(d, scores + t);
      if (block.k_scale != nullptr) score = hn::MulAdd(score, hn::Mul(hn::LoadU(d, block.k_scale + t), unit), mean);
      if constexpr (kSpecial) {
        if (softcap_ > 0) score = hn::Mul(cap, hn::Tanh(d, hn::Mul(score, inverse_cap)));
        if (s_.slope[r] > 0) {
          const auto distance = hn::Sub(hn::LoadU(di, block.positions + t), hn::Set(di, position));
          score = hn::MulAdd(hn::Set(d, s_.slope[r]), hn::ConvertTo(d, distance), score);
        }
        if (masked) score = hn::IfThenElse(Mask(v, t), score, lowest);
      }
      hn::StoreU(score, d, scores + t);
      largest = hn::Max(largest, score);
    }
    s_.reference[r] = hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  // The row sees nothing of the block.
  void Nothing(const ScoredBlock& block, int r) const {
    if (block.integers) {
      s_.w_start[r] = 0;
      std::memset(s_.w_pairs + static_cast<ptrdiff_t>(r) * block.n / 2, 0, static_cast<size_t>(block.n) * 2);
    } else {
      std::memset(s_.scores + static_cast<ptrdiff_t>(r) * block.n, 0, static_cast<size_t>(block.n) * sizeof(float));
    }
  }

  HWY_INLINE void WeighFloats(const ScoredBlock& block, int r, const Visible& v, bool masked,
                              const SoftmaxState& state) const {
    const DF d;
    float* scores = s_.scores + static_cast<ptrdiff_t>(r) * block.n;
    const VF reference = hn::Set(d, s_.reference[r]);
    VF sum = hn::Zero(d);
    for (int64_t t = block.begin; t < block.end; t += static_cast<int64_t>(hn::Lanes(d))) {
      VF p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), reference));
      if (masked) p = hn::IfThenElseZero(Mask(v, t), p);
      sum = hn::Add(sum, p);
      if (block.v_scale != nullptr) p = hn::Mul(p, hn::LoadU(d, block.v_scale + t));
      hn::StoreU(p, d, scores + t);
    }
    state.l[r] = state.l[r] * s_.alpha[r] + hn::GetLane(hn::SumOfLanes(d, sum));
  }

  // w = p * v_scale in units of (largest v_scale / kWeightLimit), as the pairs of pair_product-inl.h.
  template <bool kMasked>
  HWY_INLINE void WeighPairs(const ScoredBlock& block, int r, const Visible& v, const SoftmaxState& state) const {
    const DF d;
    const hn::RebindToSigned<DF> di;
    constexpr size_t kLanes = hn::MaxLanes(DF());
    float* scores = s_.scores + static_cast<ptrdiff_t>(r) * block.n;
    int32_t* pairs = reinterpret_cast<int32_t*>(s_.w_pairs + static_cast<ptrdiff_t>(r) * block.n / 2);
    const float largest = kMasked ? LargestSeen(block, v) : block.largest_v_scale;
    const VF factor = hn::Set(d, largest > 0 ? kWeightLimit / largest : 0.0f);
    const VF reference = hn::Set(d, s_.reference[r]);
    VF sum = hn::Zero(d);
    auto weights = hn::Zero(di);
    for (int64_t t = 0; t < block.n; t += 16, pairs += 8) {
      hn::Vec<decltype(di)> w[16 / kLanes];
      for (size_t i = 0; i < 16 / kLanes; ++i) {
        const int64_t at = t + static_cast<int64_t>(i * kLanes);
        VF p = ExpForWeights(hn::Sub(hn::LoadU(d, scores + at), reference));
        if constexpr (kMasked) p = hn::IfThenElseZero(Mask(v, at), p);
        sum = hn::Add(sum, p);
        w[i] = hn::NearestInt(hn::Mul(p, hn::Mul(hn::LoadU(d, block.v_scale + at), factor)));
        weights = hn::Add(weights, w[i]);
      }
      if constexpr (kLanes == 16) {
        const hn::Half<decltype(di)> half;
        hn::StoreU(hn::Or(hn::LowerHalf(half, w[0]), hn::ShiftLeft<16>(hn::UpperHalf(half, w[0]))), half, pairs);
      } else {
        constexpr size_t kApart = 8 / kLanes;
        for (size_t i = 0; i < kApart; ++i) {
          hn::StoreU(hn::Or(w[i], hn::ShiftLeft<16>(w[i + kApart])), di, pairs + i * kLanes);
        }
      }
    }
    s_.w_start[r] = -kLift * hn::GetLane(hn::SumOfLanes(di, weights));
    state.l[r] = state.l[r] * s_.alpha[r] + hn::GetLane(hn::SumOfLanes(d, sum)) * s_.beta[r];
    s_.beta[r] *= largest / kWeightLimit;
  }

  static HWY_INLINE float LargestSeen(const ScoredBlock& block, const Visible& v) {
    const DF d;
    VF largest = hn::Zero(d);
    for (int64_t t = 0; t < block.n; t += static_cast<int64_t>(hn::Lanes(d))) {
      largest = hn::Max(largest, hn::IfThenElseZero(Mask(v, t), hn::LoadU(d, block.v_scale + t)));
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  static HWY_INLINE hn::Mask<DF> Mask(const Visible& v, int64_t t) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const auto lane = hn::Iota(di, static_cast<int32_t>(t));
    const auto in = [&](int64_t lo, int64_t hi) HWY_ATTR {
      return hn::And(hn::VecFromMask(di, hn::Gt(lane, hn::Set(di, static_cast<int32_t>(lo - 1)))),
                     hn::VecFromMask(di, hn::Lt(lane, hn::Set(di, static_cast<int32_t>(hi)))));
    };
    return hn::RebindMask(d, hn::MaskFromVec(hn::Or(in(v.a0, v.a1), in(v.b0, v.b1))));
  }

  AttendScratch& s_;
  const float softcap_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
