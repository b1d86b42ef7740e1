// SPDX-License-Identifier: Apache-2.0
// Where a warp's tiles come from: warp w of W takes tiles w, w + W, ... of its block's range, so that who computes what
// is fixed. A warp owns its slots of shared memory, its barriers and its page ids; nothing is shared between warps.
#pragma once

#include "src/cuda/plan.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/row.cuh"

namespace tersekv::cuda {

// The pairs of a range, in order.
struct PairCursor {
  SequenceTiles sequence;
  int batch, head, begin;  // begin: the pair's first tile in the order of all tiles

  __device__ explicit PairCursor(const RangeStart& range)
      : sequence(range.sequence), batch(range.batch), head(range.head), begin(range.pair_begin) {}
  __device__ int end() const { return begin + sequence.count; }
  // There must be a next one.
  __device__ void Next(const SequenceTiles* sequences, int kv_heads) {
    begin += sequence.count;
    if (++head < kv_heads) return;
    head = 0;
    do {
      sequence = sequences[++batch];
    } while (sequence.count == 0);
  }
};

template <int kTileTokens, int kBlockBytes, bool kRaw>
class TileSource {
 public:
  static constexpr int kTileBytes = kTileTokens / kBlockTokens * kBlockBytes;

  // slots: the warp's [count] tiles of shared memory; barriers: as many.
  __device__ TileSource(const AttendParams& p, const SequenceTiles* sequences, const RangeStart& range, int warp,
                        int warps, uint32_t slots, uint32_t barriers, int count, int lane)
      : p_(p),
        sequences_(sequences),
        range_(range),
        first_(range.begin + warp),
        step_(warps),
        lane_(lane),
        copy_tokens_(min(p.pool.page_tokens, kTileTokens)),
        copies_(kTileTokens / copy_tokens_),
        batch_tiles_(32 / copies_),
        page_shift_(Log2(p.pool.page_tokens)),
        slots_(slots),
        barriers_(barriers),
        slot_count_(count),
        next_blocks_(0) {
    blocks_ = FirstBlock(0);
#if __CUDA_ARCH__ >= 900
    policy_ = EvictFirst();
    if (lane_ < slot_count_) BarrierInit(barriers_ + 8 * lane_, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
#endif
    // One tile a warp: with more in flight, the loads and instructions that come before the first product would queue
    // behind them.
    Fill(0);
  }

  // Tile now at hand, in the order of all tiles.
  __device__ int tile() const { return first_ + taken_ * step_; }

  // Waits for it; its address in shared memory. Free slots take the next tiles.
  __device__ __forceinline__ uint32_t Wait() {
#pragma unroll 1
    while (filled_ < taken_ + slot_count_) {
      Fill(fill_slot_);
      if (++fill_slot_ == slot_count_) fill_slot_ = 0;
    }
#if __CUDA_ARCH__ >= 900
    BarrierWait(barriers_ + 8 * slot_, parity_);
#else
    WaitCopies<1>();  // two slots
    __syncwarp();
#endif
    return slots_ + slot_ * kTileBytes;
  }

  // The warp has read it.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    ++taken_;
    if (++slot_ == slot_count_) slot_ = 0, parity_ ^= 1;
  }

 private:
  static __device__ int Log2(int n) {
    int shift = 0;
    while (1 << shift < n) ++shift;
    return shift;
  }

  __device__ __forceinline__ int PackedLength(int length, int batch) const {
    if constexpr (!kRaw) return length;
    const RawTokens& raw = p_.raw;
    return raw.PackedEnd(length, raw.begin != nullptr ? raw.begin[batch] : 0) - raw.sink;
  }

  // Lane i: index in the pool of the first block of copy i % copies of tile ordinal + i / copies.
  __device__ uint32_t FirstBlock(int ordinal) const {
    const int t = first_ + (ordinal + lane_ / copies_) * step_;
    if (t >= range_.end || lane_ >= batch_tiles_ * copies_) return 0;
    const int kv_heads = p_.pool.kv_heads;
    SequenceTiles s = range_.sequence;
    int b = range_.batch, head = range_.head, begin = range_.pair_begin;
    if (t >= begin + s.count) {
#pragma unroll 1
      while (t >= s.start + s.count * kv_heads) s = sequences_[++b];
      head = (t - s.start) / s.count;
      begin = s.start + head * s.count;
    }
    const int token = (s.first + t - begin) * kTileTokens + lane_ % copies_ * copy_tokens_;
    if (token >= PackedLength(s.length, b)) return 0;  // nobody reads what is copied
    const int32_t id = p_.block_table[b * p_.table_stride + (token >> page_shift_)];
    if (id < 0) return 0;  // a page that has left the window
    return ((static_cast<uint32_t>(id) * kv_heads + head) << (page_shift_ - 4)) +
           ((token & (p_.pool.page_tokens - 1)) / kBlockTokens);
  }

  __device__ void Fill(int slot) {
    const int t = first_ + filled_ * step_;
    if (t < range_.end) {
      const int bytes = copy_tokens_ / kBlockTokens * kBlockBytes;
      const uint32_t to = slots_ + slot * kTileBytes;
#if __CUDA_ARCH__ >= 900
      const uint32_t block = __shfl_sync(kFullWarp, blocks_, (in_batch_ * copies_ + lane_) & 31);
      if (lane_ == 0) BarrierExpect(barriers_ + 8 * slot, kTileBytes);
      if (lane_ < copies_) {
        BulkCopy(to + lane_ * bytes, p_.pool.data + static_cast<size_t>(block) * kBlockBytes, bytes,
                 barriers_ + 8 * slot, policy_);
      }
#else
      for (int i = 0; i < copies_; ++i) {
        const uint32_t block = __shfl_sync(kFullWarp, blocks_, (in_batch_ * copies_ + i) & 31);
        const uint8_t* from = p_.pool.data + static_cast<size_t>(block) * kBlockBytes;
        for (int at = 16 * lane_; at < bytes; at += 512) CopyAsync16(to + i * bytes + at, from + at);
      }
#endif
    }
#if __CUDA_ARCH__ < 900
    CommitCopies();  // also empty ones, so that they can be counted
#endif
    ++filled_;
    if (in_batch_ == 0) next_blocks_ = FirstBlock(filled_ - 1 + batch_tiles_);
    if (++in_batch_ == batch_tiles_) {
      in_batch_ = 0;
      blocks_ = next_blocks_;
    }
  }

  const AttendParams& p_;
  const SequenceTiles* sequences_;
  const RangeStart& range_;
  int first_, step_, lane_, copy_tokens_, copies_, batch_tiles_, page_shift_;
  uint32_t slots_, barriers_;
  int slot_count_;
  uint32_t next_blocks_, blocks_;
  int filled_ = 0, in_batch_ = 0, taken_ = 0, slot_ = 0, fill_slot_ = 1;  // the constructor has filled slot 0
  uint32_t parity_ = 0;
#if __CUDA_ARCH__ >= 900
  uint64_t policy_;
#endif
};

}  // namespace tersekv::cuda
