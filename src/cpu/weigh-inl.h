// SPDX-License-Identifier: Apache-2.0
// Scores of a chunk of tokens -> softmax weights of each row. Per-target include guard.

#if defined(TERSEKV_CPU_WEIGH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSEKV_CPU_WEIGH_INL_H_
#undef TERSEKV_CPU_WEIGH_INL_H_
#else
#define TERSEKV_CPU_WEIGH_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "src/attention/softmax_state.h"
#include "src/cpu/attend.h"
#include "src/cpu/factor_words-inl.h"
#include "src/cpu/levels-inl.h"
#include "src/cpu/visible.h"

HWY_BEFORE_NAMESPACE();
namespace tersekv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kWeightLimit = 32767;  // of 16-bit weights
constexpr float kByteLimit = 255;      // of 8-bit weights
constexpr float kTiny = 1e-30f;        // scales below are taken for 0: their reciprocals overflow

// What weights become: fp32 in place of the scores, or words of integer_product-inl.h (Pairs, QuadWeights).
enum class WeightKind { kFloats, kPairs, kQuads };

// Adding it rounds a float below 2^22 to an integer, which is then in the low bits.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
constexpr uint32_t kRounderBits = 0x4b400000u;

// 2^z for z <= 0, relative error below 5e-6: far below what a 16-bit weight can hold.
HWY_INLINE VF Exp2ForWeights(VF z) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  z = hn::Max(z, hn::Set(d, -126.0f));
  const VF rounded = hn::Add(z, hn::Set(d, kRounder));
  const VF f = hn::Sub(z, hn::Sub(rounded, hn::Set(d, kRounder)));
  // 2^f on [-0.5, 0.5], minimax of degree 4 with p(0) = 1
  VF p = hn::MulAdd(hn::Set(d, 9.678e-3f), f, hn::Set(d, 5.5836e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40222e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931436e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(du, p), hn::ShiftLeft<23>(hn::BitCast(du, rounded))));
}

// The tokens of a chunk that are computed together. Column t of a row's scores is token first + t.
struct ChunkBlocks {
  struct Block {
    int64_t at = 0;              // column of its first token
    int64_t begin = 0, end = 0;  // columns that are computed, multiples of 16
    Visible any;                 // what any query sees, columns of the block
    float largest_v_scale = 0;
    bool removed = false;  // some of its places hold no token
    bool seen_by(const Visible& v) const { return !removed && v.covers(begin, end); }  // all of it
  };
  // Looks for places without a token in what is seen.
  void FindRemoved() {
    for (Block* b = block; b < block + count; ++b) {
      for (int64_t t = b->at + b->any.begin(); t < b->at + b->any.end(); ++t) b->removed |= IsRemoved(positions[t]);
    }
  }
  int count = 0;
  Block block[kMaxBlocks];
  static_assert(kChunkTokens / 64 <= kMaxBlocks, "a page has 64 tokens or more");
  const int32_t* positions = nullptr;  // of column 0
  bool scaled = false;                 // scratch.k_scale and v_scale apply, and the mean's score
  bool integers = false;               // scores are integer sums
  WeightKind weights = WeightKind::kFloats;
};

class Weigher {
 public:
  Weigher(AttendScratch* scratch, float softcap) : s_(*scratch), softcap_(softcap) {}

  // Scores of all rows -> weights: fp32 in their place, or words at the beginning of the row's place. state: fresh;
  // gets each row's maximum and sum. visible(r), position(r): of row r, in columns of the chunk.
  template <class V, class P>
  HWY_ATTR void Weigh(const ChunkBlocks& chunk, int rows, const SoftmaxState& state, V&& visible, P&& position) const {
    for (int r = 0; r < rows; ++r) Score(chunk, r, visible(r), position(r), state);
    const DF d;
    float* factors = s_.factor;
    for (int r = 0; r < rows; ++r) {
      for (int b = 0; b < kMaxBlocks; ++b) {
        const float here = b < chunk.count ? s_.reference[r * kMaxBlocks + b] : kMinusInfinity;
        factors[r * kMaxBlocks + b] = here > kMinusInfinity ? here - state.m[r] : kLowest;
      }
    }
    for (int i = 0; i < rows * kMaxBlocks; i += static_cast<int>(hn::Lanes(d))) {
      hn::StoreU(hn::Exp(d, hn::LoadU(d, factors + i)), d, factors + i);
    }
    for (int r = 0; r < rows; ++r) {
      const Visible v = visible(r);
      float sum = 0;
      for (int b = 0; b < chunk.count; ++b) {
        const ChunkBlocks::Block& block = chunk.block[b];
        if (s_.reference[r * kMaxBlocks + b] == kMinusInfinity) {
          Nothing(chunk, block, r, b);
        } else if (chunk.weights == WeightKind::kFloats) {
          sum += Floats(chunk, block, r, v, state.m[r]);
        } else if (chunk.weights == WeightKind::kPairs) {
          sum +=
              block.seen_by(v) ? Words<false, false>(chunk, block, r, b, v) : Words<true, false>(chunk, block, r, b, v);
        } else {
          sum +=
              block.seen_by(v) ? Words<false, true>(chunk, block, r, b, v) : Words<true, true>(chunk, block, r, b, v);
        }
      }
      state.l[r] = sum;
    }
  }

 private:
  static constexpr float kLowest = -1e30f;  // whose exponential is 0

  float* Row(int r) const { return s_.scores + static_cast<size_t>(r) * kRowStride; }

  HWY_ATTR void Score(const ChunkBlocks& chunk, int r, const Visible& v, int32_t position,
                      const SoftmaxState& state) const {
    const bool special = softcap_ > 0 || s_.slope[r] > 0;
    float largest = kMinusInfinity;
    for (int b = 0; b < chunk.count; ++b) {
      const ChunkBlocks::Block& block = chunk.block[b];
      const bool plain = !special && block.seen_by(v);
      const float here =
          plain ? ScoreBlock<false>(chunk, block, r, v, position) : ScoreBlock<true>(chunk, block, r, v, position);
      s_.reference[r * kMaxBlocks + b] = here;
      largest = std::max(largest, here);
    }
    state.m[r] = largest;
  }

  template <bool kSpecial>
  HWY_INLINE float ScoreBlock(const ChunkBlocks& chunk, const ChunkBlocks::Block& block, int r, const Visible& v,
                              int32_t position) const {
    const DF d;
    const hn::RebindToSigned<DF> di;
    float* HWY_RESTRICT scores = Row(r);
    const VF unit = hn::Set(d, chunk.integers ? s_.q_unit[r] : 1.0f), mean = hn::Set(d, s_.q_mean[r]);
    const VF lowest = hn::Set(d, kMinusInfinity);
    VF largest = lowest;
    for (int64_t t = block.begin; t < block.end; t += static_cast<int64_t>(hn::Lanes(d))) {
      VF score = hn::LoadU(d, scores + t);
      if (chunk.scaled) score = hn::MulAdd(score, hn::Mul(hn::LoadU(d, s_.k_scale + t), unit), mean);
      if constexpr (kSpecial) {
        if (softcap_ > 0) {
          score = hn::Mul(hn::Set(d, softcap_), hn::Tanh(d, hn::Mul(score, hn::Set(d, 1.0f / softcap_))));
        }
        if (s_.slope[r] > 0) {
          const auto distance = hn::Sub(hn::LoadU(di, chunk.positions + t), hn::Set(di, position));
          score = hn::MulAdd(hn::Set(d, s_.slope[r]), hn::ConvertTo(d, distance), score);
        }
        score = hn::IfThenElse(Mask(chunk, v, t), score, lowest);
      }
      hn::StoreU(score, d, scores + t);
      largest = hn::Max(largest, score);
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  // The row sees nothing of the block.
  void Nothing(const ChunkBlocks& chunk, const ChunkBlocks::Block& block, int r, int b) const {
    s_.w_start[r * kMaxBlocks + b] = 0;
    const size_t n = static_cast<size_t>(block.end - block.begin);
    const int64_t share = chunk.weights == WeightKind::kFloats ? 1 : chunk.weights == WeightKind::kPairs ? 2 : 4;
    std::memset(Row(r) + block.begin / share, 0, n / static_cast<size_t>(share) * sizeof(float));
  }

  HWY_INLINE float Floats(const ChunkBlocks& chunk, const ChunkBlocks::Block& block, int r, const Visible& v,
                          float reference) const {
    const DF d;
    float* HWY_RESTRICT scores = Row(r);
    const bool masked = !block.seen_by(v);
    VF sum = hn::Zero(d);
    for (int64_t t = block.begin; t < block.end; t += static_cast<int64_t>(hn::Lanes(d))) {
      VF p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), hn::Set(d, reference)));
      if (masked) p = hn::IfThenElseZero(Mask(chunk, v, t), p);
      sum = hn::Add(sum, p);
      if (chunk.scaled) p = hn::Mul(p, hn::LoadU(d, s_.v_scale + t));
      hn::StoreU(p, d, scores + t);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  // Weights relative to the block's own maximum, times v_scale, in units of (largest v_scale / limit), as the words of
  // integer_product-inl.h: a block keeps its precision however small its share is.
  template <bool kMasked, bool kQuads>
  HWY_INLINE float Words(const ChunkBlocks& chunk, const ChunkBlocks::Block& block, int r, int b,
                         const Visible& v) const {
    const DF d;
    const hn::RebindToUnsigned<DF> du;
    constexpr float kLog2E = 1.44269504f, kLimit = kQuads ? kByteLimit : kWeightLimit;
    constexpr size_t kLanes = hn::MaxLanes(DF());
    const float* scores = Row(r);
    uint32_t* words = reinterpret_cast<uint32_t*>(Row(r)) + block.begin / (kQuads ? 4 : 2);
    const float largest = kMasked ? LargestSeen(chunk, block, v) : block.largest_v_scale;
    const VF factor = hn::Set(d, largest > kTiny ? kLimit / largest : 0.0f);
    const VF reference = hn::Set(d, s_.reference[r * kMaxBlocks + b]);
    VF sum = hn::Zero(d);
    // Begins below 0 by what kRounder adds to a lane, so that the sum of lanes stays small: its instruction is signed.
    const auto added = static_cast<uint32_t>(block.end - block.begin) / static_cast<uint32_t>(kLanes);
    auto weights = hn::Set(du, 0u - added * kRounderBits);
    for (int64_t t = block.begin; t < block.end; t += 16, words += kQuads ? 4 : 8) {
      hn::Vec<decltype(du)> w[16 / kLanes];  // the weight in the low half, bits of kRounder in the high one
      for (size_t i = 0; i < 16 / kLanes; ++i) {
        const int64_t at = t + static_cast<int64_t>(i * kLanes);
        // The difference first: it is 0 at the maximum and never more, so that no weight exceeds kLimit.
        const VF below = hn::Sub(hn::LoadU(d, scores + at), reference);
        VF p = Exp2ForWeights(hn::Mul(below, hn::Set(d, kLog2E)));
        if constexpr (kMasked) p = hn::IfThenElseZero(Mask(chunk, v, at), p);
        sum = hn::Add(sum, p);
        const VF unit = hn::Mul(hn::LoadU(d, s_.v_scale + at), factor);
        w[i] = hn::BitCast(du, hn::MulAdd(p, unit, hn::Set(d, kRounder)));
        weights = hn::Add(weights, w[i]);
      }
      if constexpr (kQuads) {
        StoreQuads(w, words);
      } else {
        StorePairs(w, words);
      }
    }
    const uint32_t total = hn::GetLane(hn::SumOfLanes(du, weights));
    s_.w_start[r * kMaxBlocks + b] = kQuads ? 0 : -kLift * static_cast<int32_t>(total);
    float& share = s_.factor[r * kMaxBlocks + b];
    const float result = hn::GetLane(hn::SumOfLanes(d, sum)) * share;
    share *= largest / kLimit;
    return result;
  }

  HWY_INLINE float LargestSeen(const ChunkBlocks& chunk, const ChunkBlocks::Block& block, const Visible& v) const {
    const DF d;
    VF largest = hn::Zero(d);
    for (int64_t t = block.begin; t < block.end; t += static_cast<int64_t>(hn::Lanes(d))) {
      largest = hn::Max(largest, hn::IfThenElseZero(Mask(chunk, v, t), hn::LoadU(d, s_.v_scale + t)));
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  // Lanes t, t + 1, ... that the row sees and that hold a token.
  static HWY_INLINE hn::Mask<DF> Mask(const ChunkBlocks& chunk, const Visible& v, int64_t t) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const auto lane = hn::Iota(di, static_cast<int32_t>(t));
    const auto in = [&](int64_t lo, int64_t hi) HWY_ATTR {
      return hn::And(hn::VecFromMask(di, hn::Gt(lane, hn::Set(di, static_cast<int32_t>(lo - 1)))),
                     hn::VecFromMask(di, hn::Lt(lane, hn::Set(di, static_cast<int32_t>(hi)))));
    };
    const auto token = hn::VecFromMask(di, hn::Gt(hn::LoadU(di, chunk.positions + t), hn::Set(di, -1)));
    return hn::RebindMask(d, hn::MaskFromVec(hn::And(token, hn::Or(in(v.a0, v.a1), in(v.b0, v.b1)))));
  }

  AttendScratch& s_;
  const float softcap_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#endif
