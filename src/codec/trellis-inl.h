// SPDX-License-Identifier: Apache-2.0
// Search and reading of trellis.h. No include guard: compiled once per SIMD target and plainly, into the namespace that
// the includer names in TERSEKV_INL_NAMESPACE; the includer has included trellis.h, pack.h and, into the same
// namespace, integer_levels-inl.h. All of the search is integers, so every target finds the same symbols.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

// Viterbi's recursion from the last value to the first. A join is what a window shares with the next: [join] ->
//   cost(join) = min over u of (z - level[w])^2 + later(w >> bits),   w = u << (window - bits) | join,
// where the lowest u wins a tie. z: the value's input; later, cost: [kJoins], differences alone matter; symbol:
// [kJoins], the u that won. wide: [kStates].
template <class W>
void TrellisStep(W, int32_t z, const int32_t* __restrict later, int32_t* __restrict wide, int32_t* __restrict cost,
                 uint8_t* __restrict symbol) {
  const int32_t* levels = W::kMetricLevels.data();
  const int32_t reference = later[0];             // keeps costs within the spread of one window
  for (int next = 0; next < W::kJoins; ++next) {  // a join holds the u of the windows before it in its highest bits
    const int32_t total = (later[next] - reference) | next / (W::kJoins / W::kBranches);
    for (int u = 0; u < W::kBranches; ++u) wide[next * W::kBranches + u] = total;
  }
  for (int join = 0; join < W::kJoins; ++join) {
    int32_t best = INT32_MAX;
    for (int u = 0; u < W::kBranches; ++u) {
      const int32_t difference = z - levels[u * W::kJoins + join];
      const int32_t total = difference * difference + wide[u * W::kJoins + join];
      best = total < best ? total : best;
    }
    cost[join] = best & ~(W::kBranches - 1);
    symbol[join] = static_cast<uint8_t>(best & (W::kBranches - 1));
  }
}

// Values first, first + 1, ..., first + count - 1 of the circle z: [d]. join: what the stream must hold before and
// after them; negative: anything. Returns the join before them; survivor: [count, kJoins].
template <class W>
int TrellisSearch(W width, const int16_t* z, int d, int first, int count, int join, uint8_t* survivor) {
  constexpr int32_t kNever = 1 << 29;  // above what the windows over one join can cost: 2043^2 << 2 * kShift each
  alignas(64) int32_t cost[2][W::kJoins];
  alignas(64) int32_t wide[W::kStates];
  for (int r = 0; r < W::kJoins; ++r) cost[count % 2][r] = join < 0 || r == join ? 0 : kNever;
  for (int j = count - 1; j >= 0; --j) {
    TrellisStep(width, z[(first + j) % d] * (1 << W::kShift), cost[(j + 1) % 2], wide, cost[j % 2],
                survivor + j * W::kJoins);
  }
  if (join >= 0) return join;
  int best = 0;
  for (int r = 1; r < W::kJoins; ++r) {
    if (cost[0][r] < cost[0][best]) best = r;
  }
  return best;
}

template <class W>
int NextWindow(W, int join, int symbol) {
  return symbol << (W::kWindow - W::kBits) | join;
}

template <class W>
void TrellisEncode(W width, const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  const int d = shape.d;
  uint8_t* survivor = reinterpret_cast<uint8_t*>(row.scratch);
  int16_t* z = reinterpret_cast<int16_t*>(survivor + (d > 2 * W::kLap ? d : 2 * W::kLap) * W::kJoins);
  uint8_t* symbols = reinterpret_cast<uint8_t*>(z + d);
  int8_t* levels = reinterpret_cast<int8_t*>(symbols + d);
  MetricInputs(row, d, W::kTable.step, z);
  // How the ends join: as they do on the best path through the values around them, over more than a lap in short rows.
  const int lap = W::kLap, start = d - lap % d;
  int join = TrellisSearch(width, z, d, start, 2 * lap, -1, survivor);
  for (int j = 0; j < lap; ++j) join = NextWindow(width, join, survivor[j * W::kJoins + join]) >> W::kBits;
  join = TrellisSearch(width, z, d, 0, d, join, survivor);
  for (int j = 0; j < d; ++j) {
    symbols[j] = survivor[j * W::kJoins + join];
    const int window = NextWindow(width, join, symbols[j]);
    levels[j] = W::Levels()[window];
    join = window >> W::kBits;
  }
  PackBits(symbols, static_cast<size_t>(d), W::kBits, record);
  StoreScale(LevelScale(W::kTable, shape, row, levels), record + d * W::kBits / 8);
}

inline void EncodeRecord(Trellis, const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  if (row.s == 0.0f) {
    for (size_t i = 0; i < Trellis::Bytes(shape); ++i) record[i] = 0;
    return;
  }
  WithTrellisWidth(shape.bits, [&](auto width) { TrellisEncode(width, shape, row, record); });
}

inline void DecodeRecord(Trellis, const RecordShape& shape, const uint8_t* record, float* y) {
  WithTrellisWidth(shape.bits, [&](auto width) {
    using W = decltype(width);
    const int d = shape.d;
    const float scale = LoadScale(record + d * W::kBits / 8);
    const auto symbol = [&](int j) {
      const int bit = j * W::kBits, byte = bit / 8;
      const int pair = record[byte] | record[byte + 1] << 8;  // the scale follows the last byte
      return pair >> (bit % 8) & (W::kBranches - 1);
    };
    int window = 0;
    for (int j = d - W::kSymbols + 1; j < d; ++j) window = NextWindow(width, window >> W::kBits, symbol((j + d) % d));
    for (int j = 0; j < d; ++j) {
      window = NextWindow(width, window >> W::kBits, symbol(j));
      y[j] = static_cast<float>(W::Levels()[window]) * scale;
    }
  });
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
