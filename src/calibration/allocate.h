// SPDX-License-Identifier: Apache-2.0
// Exact allocation of bytes: the multiple-choice knapsack. Each unit takes one of its options; the sum of losses is to
// be least with the sum of bytes within a budget.
#pragma once

#include <cstdint>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv {

struct AllocationOption {
  int bits = 0;
  int64_t bytes = 0;
  double loss = 0;  // finite
};
using AllocationUnits = std::vector<std::vector<AllocationOption>>;

struct Allocation {
  std::vector<size_t> choice;  // by unit: index of its option
  int64_t bytes = 0;
  double loss = 0;  // sum in unit order
};

// Dynamic programming over bytes in units of their common divisor; of several optima one with the fewest bytes. The
// number of options of a unit is at most 255. kInvalidArgument: the budget is below the least that is possible.
Result<Allocation> AllocateExact(const AllocationUnits& units, int64_t budget);

// From the fewest bytes on, always the step with the largest drop of loss a byte that still fits. Optimal for convex
// losses and equal steps; here to compare with.
Result<Allocation> AllocateGreedy(const AllocationUnits& units, int64_t budget);

// Bytes a token of one side of one layer as canonical records: codes and the bf16 scale. A latent is K's, with its
// rotary part as f16; its V takes none.
int64_t SideBytesPerToken(const LayerShape& shape, Kv side, int bits);

}  // namespace tersekv
