// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/allocate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/base/check.h"

namespace tersekv {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kMostCells = int64_t{1} << 28;  // of the table of choices, a byte each
constexpr int64_t kScaleBytes = 2;                // bf16

const AllocationOption& Cheapest(const std::vector<AllocationOption>& options) {
  return *std::min_element(options.begin(), options.end(), [](const auto& a, const auto& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.loss < b.loss;
  });
}

// Bytes of all units at their cheapest.
Result<int64_t> LeastBytes(const AllocationUnits& units, int64_t budget) {
  int64_t least = 0;
  for (const auto& options : units) {
    TERSEKV_CHECK(!options.empty() && options.size() < 256);
    least += Cheapest(options).bytes;
  }
  if (budget >= least) return least;
  return InvalidArgument(
      fmt::format("a budget of {} bytes a token is below the least possible, {}: allow more bits or "
                  "protect fewer layers",
                  budget, least));
}

Allocation Total(const AllocationUnits& units, std::vector<size_t> choice) {
  Allocation total{std::move(choice), 0, 0};
  for (size_t u = 0; u < units.size(); ++u) {
    const AllocationOption& option = units[u][total.choice[u]];
    total.bytes += option.bytes;
    total.loss += option.loss;
  }
  return total;
}

}  // namespace

Result<Allocation> AllocateExact(const AllocationUnits& units, int64_t budget) {
  const Result<int64_t> least = LeastBytes(units, budget);
  if (!least) return least.error();
  int64_t divisor = 0, most = 0;  // of bytes above the cheapest option of each unit
  for (const auto& options : units) {
    int64_t widest = 0;
    for (const AllocationOption& option : options) {
      const int64_t extra = option.bytes - Cheapest(options).bytes;
      divisor = std::gcd(divisor, extra);
      widest = std::max(widest, extra);
    }
    most += widest;
  }
  divisor = std::max<int64_t>(divisor, 1);
  const int64_t capacity = std::min(budget - *least, most) / divisor;
  if ((capacity + 1) > kMostCells / std::max<int64_t>(static_cast<int64_t>(units.size()), 1)) {
    return InvalidArgument(
        fmt::format("allocation of {} units over {} steps of {} bytes is too large", units.size(), capacity, divisor));
  }
  // best[c]: least loss of the units so far with exactly c steps; sums grow in unit order, as those of Total.
  const size_t cells = static_cast<size_t>(capacity) + 1;
  std::vector<double> best(cells, kNever), next(cells);
  best[0] = 0;
  std::vector<uint8_t> taken(units.size() * cells);
  for (size_t u = 0; u < units.size(); ++u) {
    std::fill(next.begin(), next.end(), kNever);
    const int64_t cheapest = Cheapest(units[u]).bytes;
    for (size_t o = 0; o < units[u].size(); ++o) {
      const size_t step = static_cast<size_t>((units[u][o].bytes - cheapest) / divisor);
      for (size_t c = step; c < cells; ++c) {
        const double loss = best[c - step] + units[u][o].loss;
        if (!(loss < next[c])) continue;
        next[c] = loss;
        taken[u * cells + c] = static_cast<uint8_t>(o);
      }
    }
    best.swap(next);
  }
  size_t c = static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  TERSEKV_CHECK(best[c] < kNever);
  std::vector<size_t> choice(units.size());
  for (size_t u = units.size(); u-- > 0;) {
    choice[u] = taken[u * cells + c];
    c -= static_cast<size_t>((units[u][choice[u]].bytes - Cheapest(units[u]).bytes) / divisor);
  }
  return Total(units, std::move(choice));
}

Result<Allocation> AllocateGreedy(const AllocationUnits& units, int64_t budget) {
  const Result<int64_t> least = LeastBytes(units, budget);
  if (!least) return least.error();
  std::vector<size_t> choice;
  for (const auto& options : units) choice.push_back(static_cast<size_t>(&Cheapest(options) - options.data()));
  for (int64_t left = budget - *least;;) {
    double steepest = 0;
    size_t unit = 0, option = 0;
    for (size_t u = 0; u < units.size(); ++u) {
      const AllocationOption& now = units[u][choice[u]];
      for (size_t o = 0; o < units[u].size(); ++o) {
        const int64_t more = units[u][o].bytes - now.bytes;
        if (more <= 0 || more > left) continue;
        const double slope = (now.loss - units[u][o].loss) / static_cast<double>(more);
        if (slope > steepest) steepest = slope, unit = u, option = o;
      }
    }
    if (!(steepest > 0)) break;
    left -= units[unit][option].bytes - units[unit][choice[unit]].bytes;
    choice[unit] = option;
  }
  return Total(units, std::move(choice));
}

int64_t SideBytesPerToken(const LayerShape& shape, Kv side, int bits) {
  if (shape.latent && side == Kv::kV) return 0;
  const int64_t d = side == Kv::kK && !shape.latent ? shape.head_dim_k : shape.head_dim_v;
  const int64_t rotary = shape.latent ? (shape.head_dim_k - shape.head_dim_v) * int64_t{sizeof(uint16_t)} : 0;
  return shape.kv_heads * ((d * bits + 7) / 8 + kScaleBytes + rotary);
}

}  // namespace tersekv
