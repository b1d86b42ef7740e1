// SPDX-License-Identifier: Apache-2.0
// Decompress gives the floats that the CPU's decoder gives, from any slots and from ranges of a block table.
#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/half.h"
#include "tests/cuda/gpu/checks.h"
#include "tests/cuda/gpu/decoder.h"

namespace tersekv::gpu {
namespace {

int64_t values = 0;

// Rows on the device, of any type, with one row more than is asked for, which must stay as it is.
struct Out {
  cuda::Type type;
  size_t heads, d, rows, batch;
  DeviceArray<float> wide;
  DeviceArray<uint16_t> half;

  Out(cuda::Type t, const HistoryShape& shape, int rows_each, int sequences)
      : type(t),
        heads(static_cast<size_t>(shape.kv_heads)),
        d(static_cast<size_t>(shape.d)),
        rows(static_cast<size_t>(rows_each) + 1),
        batch(static_cast<size_t>(sequences)) {
    if (type == cuda::Type::kF32) {
      wide = DeviceArray<float>(batch * rows * heads * d);
    } else {
      half = DeviceArray<uint16_t>(batch * rows * heads * d);
    }
  }
  cuda::Rows Rows() const {
    const int64_t token = static_cast<int64_t>(heads * d);
    return {type == cuda::Type::kF32 ? static_cast<void*>(wide.get()) : half.get(), type,
            static_cast<int64_t>(rows) * token, token, static_cast<int64_t>(d)};
  }
  // Bits, as they would be of `row`.
  std::vector<uint32_t> Want(const std::vector<float>& row) const {
    std::vector<uint32_t> bits;
    for (const float v : row) {
      uint32_t b = 0;
      if (type == cuda::Type::kF32) {
        std::memcpy(&b, &v, 4);
      } else {
        b = type == cuda::Type::kF16 ? F32ToF16(v) : F32ToBF16(v);
      }
      bits.push_back(b);
    }
    return bits;
  }
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits;
    if (type == cuda::Type::kF32) {
      const std::vector<float> all = wide.Download();
      bits.resize(all.size());
      std::memcpy(bits.data(), all.data(), 4 * all.size());
    } else {
      for (const uint16_t v : half.Download()) bits.push_back(v);
    }
    return bits;
  }
};

// slots[row] of batch 0.., -1: the row is `untouched` or zero.
void Compare(const History& h, const Out& k, const Out& v, const std::vector<int64_t>& slots, bool transformed,
             bool zeros, const char* what) {
  const HistoryShape& s = h.shape();
  size_t wrong = 0;
  std::vector<float> row;
  for (const Kv side : {Kv::kK, Kv::kV}) {
    const Out& out = side == Kv::kK ? k : v;
    const std::vector<uint32_t> got = out.Bits();
    const uint32_t poison = out.type == cuda::Type::kF32 ? ~0u : 0xffffu;
    for (size_t head = 0; head < out.heads; ++head) {
      Decoder cpu(h, static_cast<int>(head), side);
      for (size_t i = 0; i < out.batch * out.rows; ++i) {
        const size_t within = i % out.rows, index = i / out.rows * (out.rows - 1) + within;
        const bool extra = within + 1 == out.rows;
        std::vector<uint32_t> want(out.d, extra || !zeros ? poison : 0u);
        if (!extra && slots[index] >= 0) {
          cpu.Decode(slots[index], transformed, &row);
          want = out.Want(row);
        }
        for (size_t place = 0; place < out.d; ++place) {
          const bool moved = transformed && side == Kv::kV && h.pool().block.scaled();
          const uint32_t w = want[moved ? static_cast<size_t>(cuda::RowChannel(static_cast<int>(place))) : place];
          const uint32_t g = got[(i * out.heads + head) * out.d + place];
          wrong += w != g && !(transformed && (w | g) << (out.type == cuda::Type::kF32 ? 1 : 17) == 0);  // +-0
        }
        values += s.d;
      }
    }
  }
  GPU_EXPECT(wrong == 0, "decompress %s k%dv%d d %d type %d%s: %zu values differ", what, s.k_bits, s.v_bits, s.d,
             static_cast<int>(k.type), transformed ? " transformed" : "", wrong);
}

void Slots(const History& h, const std::vector<int64_t>& slots, cuda::Type type, const char* what) {
  const int tokens = static_cast<int>(slots.size());
  const Out k(type, h.shape(), tokens, 1), v(type, h.shape(), tokens, 1);
  const DeviceArray<int64_t> device_slots(slots);
  cuda::DecompressParams p;
  p.pool = h.pool();
  p.k = k.Rows(), p.v = v.Rows();
  p.slots = device_slots.get();
  p.tokens = tokens;
  Ok(cuda::Decompress(p, nullptr));
  Cuda(cudaDeviceSynchronize());
  Compare(h, k, v, slots, false, false, what);
}

void Range(const History& h, int first, int tokens, cuda::Type type, bool transformed) {
  const int batch = static_cast<int>(h.shape().lengths.size());
  const Out k(type, h.shape(), tokens, batch), v(type, h.shape(), tokens, batch);
  cuda::DecompressParams p;
  p.pool = h.pool();
  p.k = k.Rows(), p.v = v.Rows();
  p.lengths = h.lengths();
  p.block_table = h.table();
  p.table_stride = h.table_stride();
  p.batch = batch;
  p.first = first;
  p.tokens = tokens;
  p.transformed = transformed;
  Ok(cuda::Decompress(p, nullptr));
  Cuda(cudaDeviceSynchronize());
  std::vector<int64_t> slots;
  for (int b = 0; b < batch; ++b) {
    for (int t = first; t < first + tokens; ++t) {
      slots.push_back(t < h.shape().lengths[static_cast<size_t>(b)] ? h.Slot(b, t) : -1);
    }
  }
  Compare(h, k, v, slots, transformed, true, "range");
}

void CheckFormat(const HistoryShape& shape, int index, bool small) {
  const History h(shape);
  Random random(shape.seed);
  const cuda::Type types[] = {cuda::Type::kF32, cuda::Type::kBF16, cuda::Type::kF16};
  Slots(h, h.slots, cuda::Type::kF32, "in order");
  std::vector<int64_t> some = h.slots;
  for (size_t i = some.size(); i-- > 1;) {
    std::swap(some[i], some[static_cast<size_t>(random.Below(static_cast<int>(i) + 1))]);
  }
  for (size_t i = 0; i < some.size(); i += 13) some[i] = -1;
  Slots(h, some, types[index % 3], "shuffled");
  Slots(h, std::vector<int64_t>(h.slots.begin() + 3, h.slots.end()), types[(index + 1) % 3], "shifted");
  std::vector<int64_t> broken = h.slots;  // a block but for one token
  std::swap(broken[4], broken[20]);
  Slots(h, broken, cuda::Type::kF32, "broken");
  std::vector<int64_t> odd(h.slots.end() - 30, h.slots.end());  // sequences that start at any place of the list
  odd.push_back(-1);
  odd.insert(odd.end(), h.slots.begin() + 2, h.slots.end() - 30);
  Slots(h, odd, types[index % 3], "odd");
  Range(h, 0, 48, types[(index + 1) % 3], true);
  Range(h, 16, small ? 17 : 203, types[index % 3], index % 2 == 0);
  Range(h, 0, small ? 33 : 340, types[(index + 2) % 3], true);
  Range(h, 32, 5, cuda::Type::kF32, false);
}

// Refused by name.
void CheckRefused(const History& h) {
  const Out k(cuda::Type::kF32, h.shape(), 16, 1), v(cuda::Type::kF32, h.shape(), 16, 1);
  cuda::DecompressParams p;
  p.pool = h.pool();
  p.k = k.Rows(), p.v = v.Rows();
  p.tokens = 16;
  p.batch = 1;
  GPU_EXPECT(cuda::Decompress(p, nullptr).message().find("block_table") != std::string::npos, "a range of nothing");
  p.lengths = h.lengths();
  p.block_table = h.table();
  p.first = 8;
  GPU_EXPECT(cuda::Decompress(p, nullptr).message().find("not at 8") != std::string::npos, "a range from token 8");
}

}  // namespace

void CheckDecompress(bool small) {
  const int widths[] = {2, 3, 4, 5, 6, 8};
  uint64_t seed = 40;
  for (const int d : {64, 128, 192, 256}) {
    for (int i = 0; i < 6; ++i) {
      HistoryShape shape;
      shape.k_bits = widths[i];
      shape.v_bits = widths[(i + 1) % 6];
      shape.d = d;
      shape.seed = ++seed;
      shape.page_tokens = i % 2 == 0 ? 64 : 16;
      shape.stats = i % 3 != 2;
      shape.lengths = {small ? 40 : 337, 7, 0, 70};
      shape.zeros = true;
      CheckFormat(shape, i, small);
    }
    HistoryShape raw;
    raw.k_bits = raw.v_bits = cuda::kRawBits;
    raw.d = d;
    raw.bf16 = d != 128;
    raw.lengths = {small ? 20 : 90, 33};
    CheckFormat(raw, d == 64 ? 0 : 1, true);
  }
  HistoryShape shape;
  shape.lengths = {40};
  CheckRefused(History(shape));
  std::printf("decompress: %.1f M values compared with the CPU's decoder\n", static_cast<double>(values) * 1e-6);
}

}  // namespace tersekv::gpu
