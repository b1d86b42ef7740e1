// SPDX-License-Identifier: Apache-2.0
// Append writes the bytes that the CPU's encoder writes, whatever the order of slots.
#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/codec/head_codec.h"
#include "src/codec/lloyd_max.h"
#include "tests/cuda/gpu/checks.h"
#include "tests/cuda/gpu/history.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/encode-inl.h"

namespace tersekv::gpu {
namespace {

struct CpuHead {
  RotationOp rotation;
  HeadCodec codec;
  std::vector<float> scratch;

  CpuHead(const History& h, int kv_head, Kv side, NormMode norm)
      : rotation(RotationKind::kHadamard, h.pool().seed, h.pool().layer, kv_head, side == Kv::kV, h.shape().d) {
    const size_t at = static_cast<size_t>(kv_head * h.shape().d);
    codec.d = h.shape().d;
    codec.bits = h.pool().block.bits(side);
    codec.norm = norm;
    codec.rotation = &rotation;
    codec.sqrt_d = std::sqrt(static_cast<float>(codec.d));
    if (!h.k_mean.empty()) {
      codec.mean = (side == Kv::kK ? h.k_mean : h.v_mean).data() + at;
      if (side == Kv::kK) codec.inv_scale = h.k_inv.data() + at;
    }
    scratch.resize(EncodeScratchFloats(codec.d, 1));
  }
  void Encode(std::vector<float> row, std::vector<uint8_t>* codes, uint16_t* scale) {
    codes->resize(row.size());
    plain::EncodeLanes(ScalarLanes(), codec, row.data(), codes->data(), scale, scratch.data());
  }
};

// Every record of the history against the CPU's; the values compared.
int64_t CompareRecords(const History& h, const std::vector<int64_t>& slots, const std::vector<float>& k,
                       const std::vector<float>& v, NormMode k_norm, NormMode v_norm) {
  const HistoryShape& shape = h.shape();
  const size_t d = static_cast<size_t>(shape.d);
  int64_t values = 0;
  int wrong = 0;
  std::vector<uint8_t> want, got;
  for (const Kv side : {Kv::kK, Kv::kV}) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      CpuHead cpu(h, head, side, side == Kv::kK ? k_norm : v_norm);
      for (size_t t = 0; t < slots.size(); ++t) {
        if (slots[t] < 0) continue;
        const float* row =
            (side == Kv::kK ? k : v).data() + (t * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(head)) * d;
        uint16_t scale = 0, stored = 0;
        cpu.Encode(std::vector<float>(row, row + d), &want, &scale);
        h.ReadRecord(slots[t], head, side, &got, &stored);
        values += shape.d;
        if (want == got && scale == stored) continue;
        if (++wrong > 3) continue;
        size_t c = 0;
        while (c < d && want[c] == got[c]) ++c;
        GPU_EXPECT(false, "%d bits d %d %s head %d token %zu: scale %04x, CPU %04x; channel %zu: %d, CPU %d",
                   cpu.codec.bits, shape.d, side == Kv::kK ? "K" : "V", head, t, stored, scale, c, c < d ? got[c] : 0,
                   c < d ? want[c] : 0);
      }
    }
  }
  GPU_EXPECT(wrong == 0, "%d records differ", wrong);
  return values;
}

std::vector<float> Widen(const std::vector<uint16_t>& rows) {
  std::vector<float> out;
  for (const uint16_t v : rows) out.push_back(BF16ToF32(v));
  return out;
}

// Rows as decode and prefill bring them: any order of slots, some left out, norms of every kind, three input types.
int64_t AppendRows(const HistoryShape& shape, cuda::Type type, NormMode k_norm, NormMode v_norm, int tokens,
                   bool shuffled, uint64_t seed) {
  HistoryShape sized = shape;
  sized.lengths = {tokens, 40};  // the second one's neighbours must stay
  const History h(sized);
  Random random(seed);
  const size_t width = static_cast<size_t>(shape.kv_heads * shape.d), n = static_cast<size_t>(tokens);
  std::vector<float> k(n * width), v(n * width);
  for (size_t i = 0; i < k.size(); ++i) {
    const size_t token = i / width;
    // Ties: rows of few small integers give sums that are exact zeros and equal halves.
    const bool ties = token % 5 == 0;
    k[i] = ties ? static_cast<float>(random.Below(3) - 1) : random.Gaussian() * (token % 7 == 1 ? 1e-3f : 3.0f);
    v[i] = ties ? static_cast<float>(random.Below(5) - 2) : random.Gaussian() * (token % 11 == 1 ? 1e2f : 0.1f);
    if (token % 97 == 3) k[i] = v[i] = 0;
  }
  std::vector<uint16_t> k16, v16;
  if (type != cuda::Type::kF32) {
    for (auto* rows : {&k, &v}) {
      for (float& f : *rows) {
        const uint16_t bits = type == cuda::Type::kF16 ? F32ToF16(f) : F32ToBF16(f);
        (rows == &k ? k16 : v16).push_back(bits);
        f = type == cuda::Type::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
      }
    }
  }
  std::vector<int64_t> slots(h.slots.begin(), h.slots.begin() + tokens);
  if (shuffled) {
    for (size_t i = n; i-- > 1;) std::swap(slots[i], slots[static_cast<size_t>(random.Below(static_cast<int>(i) + 1))]);
    for (size_t i = 0; i < n; i += 13) slots[i] = -1;
  }
  const DeviceArray<float> k32d(k), v32d(v);
  const DeviceArray<uint16_t> k16d(k16), v16d(v16);
  const DeviceArray<int64_t> device_slots(slots);
  DeviceArray<int> flag(std::vector<int>{0});
  cuda::AppendParams p;
  p.pool = h.pool();
  p.k_norm = k_norm;
  p.v_norm = v_norm;
  const bool wide = type == cuda::Type::kF32;
  p.k = {wide ? static_cast<void*>(k32d.get()) : k16d.get(), type, 0, static_cast<int64_t>(width), shape.d};
  p.v = {wide ? static_cast<void*>(v32d.get()) : v16d.get(), type, 0, static_cast<int64_t>(width), shape.d};
  p.slots = device_slots.get();
  p.tokens = tokens;
  p.not_finite = flag.get();
  Ok(cuda::Append(p, nullptr));
  Cuda(cudaDeviceSynchronize());
  GPU_EXPECT(flag.Download()[0] == 0, "finite rows were called not finite");
  History after = History(sized);  // same pages; then the bytes that this launch wrote
  Cuda(cudaMemcpy(after.pool().data, h.pool().data, after.pool().page_bytes() * after.pages(),
                  cudaMemcpyDeviceToDevice));
  after.Reload();
  int64_t values = CompareRecords(after, slots, k, v, k_norm, v_norm);
  std::vector<int64_t> rest(after.slots.begin() + tokens, after.slots.end());
  const auto tail = [&](const std::vector<uint16_t>& rows) {
    const std::vector<float> all = Widen(rows);
    return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(n * width), all.end());
  };
  values += CompareRecords(after, rest, tail(after.k), tail(after.v), NormMode::kUnbiased, NormMode::kLs);
  return values;
}

}  // namespace

void CheckAppend(bool small) {
  int64_t values = 0;
  uint64_t seed = 1;
  const int widths[] = {2, 3, 4, 5, 6, 8};
  for (const int d : {64, 128, 192, 256}) {
    for (int i = 0; i < 6; ++i) {
      HistoryShape shape;
      shape.k_bits = widths[i];
      shape.v_bits = widths[(i + 1) % 6];
      shape.d = d;
      shape.seed = ++seed;
      shape.page_tokens = i % 2 == 0 ? 64 : 16;
      shape.stats = i % 3 != 2;
      const NormMode norms[] = {NormMode::kUnbiased, NormMode::kLs, NormMode::kMatch, NormMode::kNone};
      const cuda::Type types[] = {cuda::Type::kBF16, cuda::Type::kF16, cuda::Type::kF32};
      const int tokens = small ? 50 : 1500;
      values += AppendRows(shape, types[i % 3], norms[i % 4], norms[(i + 1) % 4], tokens, i % 2 == 1, seed);
      values += AppendRows(shape, types[(i + 1) % 3], norms[(i + 2) % 4], norms[(i + 3) % 4], small ? 20 : 300,
                           i % 2 == 0, seed + 100);
      if (!small && d == 128) {
        values += AppendRows(shape, cuda::Type::kBF16, NormMode::kUnbiased, NormMode::kLs, 4000, false, seed + 200);
      }
    }
  }
  std::printf("append: %.1f M values compared with the CPU's encoder\n", static_cast<double>(values) * 1e-6);
}

void CheckNotFinite() {
  HistoryShape shape;
  shape.lengths = {20};
  const History h(shape);
  const size_t width = static_cast<size_t>(shape.kv_heads * shape.d);
  std::vector<uint16_t> rows(20 * width, 0x3f80);
  rows[7 * width + 5] = 0x7f80;
  const DeviceArray<uint16_t> device_rows(rows);
  const DeviceArray<int64_t> slots(h.slots);
  DeviceArray<int> flag(std::vector<int>{0});
  cuda::AppendParams p;
  p.pool = h.pool();
  p.k = p.v = {device_rows.get(), cuda::Type::kBF16, 0, static_cast<int64_t>(width), shape.d};
  p.slots = slots.get();
  p.tokens = 20;
  p.not_finite = flag.get();
  Ok(cuda::Append(p, nullptr));
  GPU_EXPECT(flag.Download()[0] == 1, "an infinite value was not reported");
}

}  // namespace tersekv::gpu
