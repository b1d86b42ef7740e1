// SPDX-License-Identifier: Apache-2.0
// The plan of a step: every (query, head) is computed once, over every chunk once, for any shape and number of workers.
#include "src/attention/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/reference/rows.h"

namespace tersekv {
namespace {

using reference::Random;

// Sequences whose queries see [sink, packed_end) packed: `win` newest tokens are raw.
std::vector<StepSequence> MakeStep(const std::vector<std::pair<int64_t, int>>& begin_and_queries, int sink, int win) {
  std::vector<StepSequence> step;
  for (const auto& [begin, queries] : begin_and_queries) {
    StepSequence& part = step.emplace_back();
    part.begin = begin;
    for (int q = 0; q < queries; ++q) {
      StepQuery query;
      query.order = begin + q;
      query.packed_end = std::max<int64_t>(sink, query.order + 1 - win);
      part.queries.push_back(query);
    }
  }
  return step;
}

// Chunks that hold a raw token which some query of the tile sees.
int64_t RawChunksSeen(const std::vector<StepSequence>& step, const AttendTile& tile, int sink) {
  std::set<int64_t> chunks;
  for (int q = 0; q < tile.queries; ++q) {
    const StepQuery& query = step[static_cast<size_t>(tile.part)].queries[static_cast<size_t>(tile.first_query + q)];
    for (int64_t j = 0; j <= query.order; ++j) {
      if (j < sink || j >= query.packed_end) chunks.insert(j / kChunkTokens);
    }
  }
  return static_cast<int64_t>(chunks.size());
}

int64_t ChunksSeen(const std::vector<StepSequence>& step, const AttendTile& tile, int sink) {
  int64_t most = 0;
  for (int q = tile.first_query; q < tile.first_query + tile.queries; ++q) {
    const StepQuery& query = step[static_cast<size_t>(tile.part)].queries[static_cast<size_t>(q)];
    most = std::max(most, (query.packed_end - sink + kChunkTokens - 1) / kChunkTokens);
  }
  return most;
}

void CheckTiles(const AttendPlan& plan, const std::vector<StepSequence>& step, const LayerShape& shape) {
  std::set<std::vector<int>> seen;  // (part, query, head)
  size_t pairs = 0;
  for (const StepSequence& part : step) pairs += part.queries.size() * static_cast<size_t>(shape.heads);
  EXPECT_EQ(plan.group(), shape.heads / shape.kv_heads);
  for (const AttendTile& tile : plan.tiles()) {
    ASSERT_GT(tile.queries, 0);
    EXPECT_LE(tile.queries, 64);  // what the kernel has room for
    EXPECT_LE(tile.queries * plan.group(), plan.max_rows());
    for (int q = 0; q < tile.queries; ++q) {
      for (int g = 0; g < plan.group(); ++g) {
        const int head = tile.kv_head * plan.group() + g;
        EXPECT_LT(head, shape.heads);
        EXPECT_TRUE(seen.insert({tile.part, tile.first_query + q, head}).second) << "twice";
      }
    }
  }
  EXPECT_EQ(seen.size(), pairs);
}

// Items of one tile: all chunks in order, equal spans of a power of two, the raw tokens once.
void CheckItems(const AttendPlan& plan, const std::vector<StepSequence>& step, int sink) {
  std::vector<std::vector<const AttendItem*>> of(plan.tiles().size());
  std::set<size_t> offsets;
  size_t apart = 0;
  for (size_t i = 0; i < plan.items().size(); ++i) {
    const AttendItem& item = plan.items()[i];
    auto& items = of.at(static_cast<size_t>(item.tile));
    const AttendTile& tile = plan.tiles()[static_cast<size_t>(item.tile)];
    EXPECT_EQ(static_cast<size_t>(tile.first_item) + items.size(), i) << "items of a tile are neighbours";
    items.push_back(&item);
    if (item.whole) continue;
    ++apart;
    offsets.insert(item.state_offset);
    // Writable: the sanitizer sees a state that does not fit.
    const int rows = tile.queries * plan.group();
    SoftmaxState::At(plan.states() + item.state_offset, rows, plan.stride()).Clear(rows);
  }
  EXPECT_EQ(offsets.size(), apart) << "two items share a state";
  for (size_t t = 0; t < of.size(); ++t) {
    const AttendTile& tile = plan.tiles()[t];
    const int64_t chunks = ChunksSeen(step, tile, sink);
    ASSERT_FALSE(of[t].empty());
    EXPECT_GE(plan.max_raw_chunks(), RawChunksSeen(step, tile, sink));
    if (of[t][0]->whole) {
      EXPECT_EQ(of[t].size(), 1u);
      EXPECT_TRUE(of[t][0]->raw);
      EXPECT_EQ(of[t][0]->chunk_begin, 0);
      EXPECT_EQ(of[t][0]->chunk_end, chunks);
      continue;
    }
    ASSERT_EQ(of[t].size(), static_cast<size_t>(tile.spans) + 1);
    EXPECT_GE(tile.spans, 2);
    const int64_t span = of[t][0]->chunk_end;
    EXPECT_EQ(span & (span - 1), 0) << "spans own whole subtrees";
    int64_t next = 0;
    for (int s = 0; s < tile.spans; ++s) {
      const AttendItem& item = *of[t][static_cast<size_t>(s)];
      EXPECT_FALSE(item.raw);
      EXPECT_EQ(item.chunk_begin, next);
      EXPECT_EQ(item.chunk_end, std::min(chunks, next + span));
      next = item.chunk_end;
    }
    EXPECT_EQ(next, chunks);
    EXPECT_TRUE(of[t].back()->raw);
    EXPECT_EQ(of[t].back()->chunk_begin, of[t].back()->chunk_end);
  }
}

// The last item of a tile says so, in every layer again.
void CheckFinish(const AttendPlan& plan) {
  for (int layer = 0; layer < 3; ++layer) {
    std::vector<int> left(plan.tiles().size());
    for (const AttendItem& item : plan.items()) ++left[static_cast<size_t>(item.tile)];
    for (size_t i = plan.items().size(); i-- > 0;) {
      const AttendItem& item = plan.items()[i];
      if (item.whole) continue;
      EXPECT_EQ(plan.FinishItem(item.tile), --left[static_cast<size_t>(item.tile)] == 0);
    }
  }
}

void CheckPlan(const std::vector<StepSequence>& step, const LayerShape& shape, int sink, int workers) {
  const AttendPlan plan(step, shape.heads, shape, sink, workers);
  EXPECT_GE(plan.stride(), static_cast<size_t>(shape.head_dim_v));
  EXPECT_EQ(plan.stride() % 16, 0u) << "the product writes whole vectors";
  CheckTiles(plan, step, shape);
  CheckItems(plan, step, sink);
  CheckFinish(plan);
}

TEST(AttendPlan, CoversEverythingOnce) {
  const LayerShape shapes[] = {{1, 1, 64, 64},  {9, 3, 64, 64},   {8, 1, 128, 80}, {64, 1, 32, 8},
                               {71, 1, 64, 64}, {12, 12, 64, 64}, {6, 2, 32, 512}};
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    const int sink = round % 3 == 0 ? 0 : 4, win = round % 2 == 0 ? 128 : 0;
    std::vector<std::pair<int64_t, int>> parts;
    for (size_t p = 0, n = 1 + random.Below(4); p < n; ++p) {
      const bool decode = random.Below(2) == 0;
      parts.emplace_back(random.Below(2) == 0 ? random.Below(600) : random.Below(60000),
                         decode ? 1 : 1 + static_cast<int>(random.Below(200)));
    }
    const std::vector<StepSequence> step = MakeStep(parts, sink, win);
    for (const LayerShape& shape : shapes) {
      for (const int workers : {1, 2, 3, 7, 8, 64}) {
        SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(shape.heads) + " heads, " +
                     std::to_string(workers) + " workers");
        CheckPlan(step, shape, sink, workers);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(AttendPlan, EmptyHistoryAndChunkEdges) {
  for (const int64_t begin : {0, 1, 511, 512, 513, 1023, 1024, 1025}) {
    CheckPlan(MakeStep({{begin, 1}, {begin, 2}}, 0, 0), {4, 2, 64, 64}, 0, 8);
  }
}

// A decode step of a long sequence gives every worker something to do.
TEST(AttendPlan, LongDecodeIsSplit) {
  const std::vector<StepSequence> step = MakeStep({{32768, 1}}, 4, 128);
  EXPECT_GE(AttendPlan(step, 8, {8, 1, 64, 64}, 4, 8).items().size(), 8u);
  EXPECT_EQ(AttendPlan(step, 8, {8, 1, 64, 64}, 4, 1).items().size(), 1u);
}

}  // namespace
}  // namespace tersekv
