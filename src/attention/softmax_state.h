// SPDX-License-Identifier: Apache-2.0
// The running softmax of some rows (queries) over some tokens, and how two of them join (Milakov and Gimelshein 2018;
// split over keys: Dao et al., Flash-Decoding 2023). Scores are absolute logits
// (docs/decisions/0002-absolute-logits.md).
//
// States of chunks join in a fixed binary tree over the absolute chunk index, so that a result does not depend on who
// computed which chunks (docs/decisions/0001-contract.md, section 5).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersekv {

inline constexpr int kChunkTokens = 512;

// Views of memory for `rows` queries.
struct SoftmaxState {
  float* m = nullptr;    // [rows] largest score, -inf when nothing was seen
  float* l = nullptr;    // [rows] sum of exp(score - m)
  float* acc = nullptr;  // [rows, stride] sum of exp(score - m) * value
  size_t stride = 0;

  static size_t Floats(int rows, size_t stride) { return static_cast<size_t>(rows) * (2 + stride); }
  static SoftmaxState At(float* memory, int rows, size_t stride) {
    return {memory, memory + rows, memory + 2 * rows, stride};
  }
  void Clear(int rows) const;
};

// into = into joined with from, `from` being the later tokens. An empty row leaves the other as it is, to the bit.
void MergeStates(const SoftmaxState& into, const SoftmaxState& from, int rows, int values);

// Folds chunk states, given in ascending order, into one: the binary-counter order of the fixed tree. Memory is the
// caller's: Slots() states.
class StateFold {
 public:
  // For at most `pushed` chunks that are not empty, wherever in the history; 26 are enough for any number.
  static int Slots(int64_t pushed);
  StateFold(float* memory, int slots, int rows, size_t stride, int values)
      : memory_(memory), slots_(slots), rows_(rows), values_(values), stride_(stride) {}

  // Where the next state goes (cleared).
  SoftmaxState Next();
  // Joins the state last given by Next(): `level` is log2 of the chunks it stands for; an incomplete last span has -1.
  void Push(int level);
  // Chunks without visible tokens: counted, not computed.
  void PushEmpty(int level);
  // All of them joined; row r is empty when nothing was pushed. Valid until the next call.
  SoftmaxState Finish();

 private:
  struct Entry {
    int level;
    bool empty;
    int slot;
  };
  SoftmaxState Slot(int slot) const {
    return SoftmaxState::At(memory_ + static_cast<size_t>(slot) * SoftmaxState::Floats(rows_, stride_), rows_, stride_);
  }
  void Add(Entry entry);
  void JoinTop();

  float* memory_;
  int slots_, rows_, values_;
  size_t stride_;
  Entry stack_[48];
  int size_ = 0;
  int used_ = 0;  // slots in use: they follow the non-empty entries of the stack
};

}  // namespace tersekv
