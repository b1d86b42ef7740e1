// SPDX-License-Identifier: Apache-2.0
// Softmax states: joining with nothing changes no bit, joining is exact enough, and spans fold as their chunks do.
#include "src/attention/softmax_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using reference::Random;

constexpr int kRows = 3, kValues = 5;
constexpr size_t kStride = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Owns the memory of one state.
struct State {
  std::vector<float> memory = std::vector<float>(SoftmaxState::Floats(kRows, kStride));
  SoftmaxState view = SoftmaxState::At(memory.data(), kRows, kStride);
  State() { view.Clear(kRows); }
  State(const State& o) : memory(o.memory) {}
  State& operator=(const State&) = delete;
};

void FillRow(const SoftmaxState& state, int r, Random* random) {
  state.m[r] = static_cast<float>(6 * random->Gaussian());
  state.l[r] = static_cast<float>(1 + 40 * random->Uniform());
  for (int c = 0; c < kValues; ++c) {
    state.acc[static_cast<size_t>(r) * kStride + static_cast<size_t>(c)] = static_cast<float>(9 * random->Gaussian());
  }
}

// m, l and the values of all rows, to the bit.
std::vector<uint32_t> Bits(const SoftmaxState& state) {
  std::vector<uint32_t> bits;
  const auto add = [&](float v) {
    uint32_t u;
    std::memcpy(&u, &v, 4);
    bits.push_back(u);
  };
  for (int r = 0; r < kRows; ++r) {
    add(state.m[r]);
    add(state.l[r]);
    for (int c = 0; c < kValues; ++c) add(state.acc[static_cast<size_t>(r) * kStride + static_cast<size_t>(c)]);
  }
  return bits;
}

TEST(MergeStates, EmptyChangesNothing) {
  Random random(1);
  State full, empty, none;
  for (int r = 0; r < kRows; ++r) FillRow(full.view, r, &random);
  full.view.acc[2] = -0.0f;
  full.view.l[1] = 3e-39f;  // a denormal sum is not empty
  const std::vector<uint32_t> before = Bits(full.view);
  MergeStates(full.view, empty.view, kRows, kValues);
  EXPECT_EQ(Bits(full.view), before);
  MergeStates(empty.view, full.view, kRows, kValues);
  EXPECT_EQ(Bits(empty.view), before);
  State other;
  MergeStates(none.view, other.view, kRows, kValues);
  EXPECT_EQ(Bits(none.view), Bits(State().view));
  EXPECT_EQ(none.view.m[0], -kInfinity);
}

TEST(MergeStates, RowsAreSeparate) {
  Random random(2);
  State a, b;
  FillRow(a.view, 0, &random);
  FillRow(a.view, 1, &random);
  FillRow(b.view, 1, &random);
  FillRow(b.view, 2, &random);
  const State a0 = a, b0 = b;
  MergeStates(a.view, b.view, kRows, kValues);
  const std::vector<uint32_t> joined = Bits(a.view), left = Bits(a0.view), right = Bits(b0.view);
  const size_t n = kValues + 2;
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(joined[i], left[i]) << "row 0 had nothing to join";
  for (size_t i = 2 * n; i < 3 * n; ++i) EXPECT_EQ(joined[i], right[i]) << "row 2 was empty";
  for (int c = 0; c < kValues; ++c) {
    const size_t at = kStride + static_cast<size_t>(c);
    const double m = std::max(static_cast<double>(a0.view.m[1]), static_cast<double>(b0.view.m[1]));
    const double exact = std::exp(static_cast<double>(a0.view.m[1]) - m) * static_cast<double>(a0.view.acc[at]) +
                         std::exp(static_cast<double>(b0.view.m[1]) - m) * static_cast<double>(b0.view.acc[at]);
    EXPECT_NEAR(static_cast<double>(a.view.acc[at]), exact, 1e-5);
  }
}

TEST(MergeStates, FarApartMaximaNeitherOverflowNorVanish) {
  State a, b;
  a.view.m[0] = 30000.0f, a.view.l[0] = 2.0f, a.view.acc[0] = 4.0f;
  b.view.m[0] = -30000.0f, b.view.l[0] = 1.0f, b.view.acc[0] = 9.0f;
  const State a0 = a;
  MergeStates(a.view, b.view, kRows, kValues);
  EXPECT_EQ(Bits(a.view), Bits(a0.view));
  MergeStates(b.view, a0.view, kRows, kValues);
  EXPECT_EQ(Bits(b.view), Bits(a0.view));
}

// Chunk states by index; an empty chunk has no rows, and some rows see nothing of a chunk.
std::vector<State> Chunks(int n, Random* random, std::vector<bool>* empty) {
  std::vector<State> chunks(static_cast<size_t>(n));
  for (State& chunk : chunks) {
    empty->push_back(random->Below(4) == 0);
    for (int r = 0; r < kRows && !empty->back(); ++r) {
      if (random->Below(5) != 0) FillRow(chunk.view, r, random);
    }
  }
  return chunks;
}

struct Folder {
  explicit Folder(int64_t chunks)
      : memory(static_cast<size_t>(StateFold::Slots(chunks)) * SoftmaxState::Floats(kRows, kStride), NAN),
        fold(memory.data(), StateFold::Slots(chunks), kRows, kStride, kValues) {}
  void Put(const SoftmaxState& state, int level) {
    const SoftmaxState next = fold.Next();
    std::memcpy(next.m, state.m, SoftmaxState::Floats(kRows, kStride) * sizeof(float));
    fold.Push(level);
  }
  std::vector<float> memory;
  StateFold fold;
};

TEST(StateFold, SpansFoldAsTheirChunks) {
  Random random(3);
  for (int n = 0; n <= 70; ++n) {
    std::vector<bool> empty;
    const std::vector<State> chunks = Chunks(n, &random, &empty);
    const auto put = [&](Folder* folder, int from, int to) {
      for (int i = from; i < to; ++i) {
        const size_t at = static_cast<size_t>(i);
        empty[at] ? folder->fold.PushEmpty(0) : folder->Put(State(chunks[at]).view, 0);
      }
    };
    Folder sequential(std::max(n, 1));
    put(&sequential, 0, n);
    const std::vector<uint32_t> expected = Bits(sequential.fold.Finish());
    for (int level = 0; (1 << level) <= std::max(n, 1); ++level) {
      Folder spans(std::max(n, 1));
      for (int begin = 0; begin < n; begin += 1 << level) {
        const int end = std::min(n, begin + (1 << level));
        Folder part(1 << level);
        put(&part, begin, end);
        const SoftmaxState state = part.fold.Finish();
        spans.Put(state, end - begin == 1 << level ? level : -1);
      }
      ASSERT_EQ(Bits(spans.fold.Finish()), expected) << n << " chunks in spans of " << (1 << level);
    }
  }
}

// The tree is over absolute indices: empty chunks keep their place in it.
TEST(StateFold, EqualsTheTreeWrittenRecursively) {
  Random random(4);
  for (int n = 1; n <= 70; ++n) {
    std::vector<bool> empty;
    const std::vector<State> chunks = Chunks(n, &random, &empty);
    // Subtree [begin, begin + size): left half joined with right half; a lone right end joins as it is.
    const auto tree = [&](auto&& self, int begin, int size) -> State {
      if (begin >= n) return {};
      if (size == 1) return State(chunks[static_cast<size_t>(begin)]);
      State left = self(self, begin, size / 2);
      const State right = self(self, begin + size / 2, size / 2);
      MergeStates(left.view, right.view, kRows, kValues);
      return left;
    };
    Folder folder(n);
    for (int i = 0; i < n; ++i) {
      empty[static_cast<size_t>(i)] ? folder.fold.PushEmpty(0) : folder.Put(chunks[static_cast<size_t>(i)].view, 0);
    }
    ASSERT_EQ(Bits(folder.fold.Finish()), Bits(tree(tree, 0, 128).view)) << n << " chunks";
  }
}

TEST(StateFold, NothingPushedIsEmpty) {
  Folder folder(1);
  EXPECT_EQ(Bits(folder.fold.Finish()), Bits(State().view));
  Folder empties(9);
  for (int i = 0; i < 9; ++i) empties.fold.PushEmpty(0);
  EXPECT_EQ(Bits(empties.fold.Finish()), Bits(State().view));
}

}  // namespace
}  // namespace tersekv
