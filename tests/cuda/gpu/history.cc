// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gpu/history.h"

#include <algorithm>
#include <cstring>

#include "src/base/half.h"
#include "src/codec/lloyd_max.h"

namespace tersekv::gpu {

using cuda::BlockLayout;
using cuda::kBlockTokens;

History::History(const HistoryShape& shape) : shape_(shape) {
  Random random(shape.seed);
  const size_t heads = static_cast<size_t>(shape.kv_heads), d = static_cast<size_t>(shape.d);
  int total = 0, pages = 0;
  for (const int length : shape.lengths) {
    total += length;
    const int own = (length + shape.page_tokens - 1) / shape.page_tokens;  // packed tokens are fewer with raw ones
    pages += own;
    table_stride_ = std::max(table_stride_, own);
  }
  std::vector<int32_t> ids(static_cast<size_t>(pages) + 3);  // some pages nobody has
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  for (size_t i = ids.size(); i-- > 1;)
    std::swap(ids[i], ids[static_cast<size_t>(random.Below(static_cast<int>(i) + 1))]);
  pages_of_.assign(shape.lengths.size() * static_cast<size_t>(table_stride_), 0x40000000);  // read: a wild address
  size_t next = 0;
  for (size_t b = 0; b < shape.lengths.size(); ++b) {
    for (int i = 0; i * shape.page_tokens < shape.lengths[b]; ++i) {
      pages_of_[b * static_cast<size_t>(table_stride_) + static_cast<size_t>(i)] = ids[next++];
    }
  }

  pool_.block = {shape.k_bits, shape.v_bits, shape.d};
  pool_.bf16 = shape.bf16;
  pool_.kv_heads = shape.kv_heads;
  pool_.page_tokens = shape.page_tokens;
  pool_.seed = shape.seed;
  pool_.layer = 3;
  memory_ = DeviceArray<uint8_t>(ids.size() * pool_.page_bytes());
  pool_.data = memory_.get();
  device_lengths_ = DeviceArray<int32_t>(std::vector<int32_t>(shape.lengths.begin(), shape.lengths.end()));
  table_ = DeviceArray<int32_t>(pages_of_);
  if (shape.stats && pool_.block.scaled()) {
    std::vector<float> all;
    for (size_t i = 0; i < heads * d; ++i) {
      k_mean.push_back(2 * random.Gaussian());
      k_scale.push_back(std::exp(random.Gaussian() * 0.5f));
      k_inv.push_back(1.0f / k_scale.back());
      v_mean.push_back(random.Gaussian());
      if (shape.has_raw) {  // as a profile gives them
        v_scale.push_back(std::exp(random.Gaussian() * 0.5f));
        v_inv.push_back(1.0f / v_scale.back());
      }
    }
    for (const auto* s : {&k_mean, &k_scale, &k_inv, &v_mean, &v_scale, &v_inv}) {
      all.insert(all.end(), s->begin(), s->end());
    }
    stats_ = DeviceArray<float>(all);
    pool_.k = {stats_.get(), stats_.get() + heads * d, stats_.get() + 2 * heads * d};
    pool_.v = {stats_.get() + 3 * heads * d, nullptr, nullptr};
    if (shape.has_raw) pool_.v.scale = stats_.get() + 4 * heads * d, pool_.v.inv_scale = stats_.get() + 5 * heads * d;
  }

  for (size_t b = 0; b < shape.lengths.size(); ++b) {
    const int end = PackedEnd(static_cast<int>(b), shape.lengths[b]);
    for (int t = 0; t < shape.lengths[b]; ++t) {
      slots.push_back(t >= shape.sink && t < end ? Slot(static_cast<int>(b), t - shape.sink) : -1);
    }
  }
  for (int t = 0; t < total; ++t) {
    const float loud = shape.zeros && t % 9 == 4 ? 0.0f : std::exp(0.5f * random.Gaussian());
    for (size_t i = 0; i < heads * d; ++i) {
      const bool stats = !k_mean.empty();
      k.push_back(F32ToBF16(random.Gaussian() * loud * (stats ? k_scale[i] : 1) + (stats ? k_mean[i] : 0)));
      const float spread = v_scale.empty() ? 1.0f : v_scale[i];
      v.push_back(F32ToBF16(random.Gaussian() * loud * spread + (stats ? v_mean[i] : 0)));
    }
  }
  if (total > 0) {
    const DeviceArray<uint16_t> rows_k(k), rows_v(v);
    const DeviceArray<int64_t> device_slots(slots);
    cuda::AppendParams p;
    p.pool = pool_;
    const int64_t width = shape.kv_heads * shape.d;
    p.k = {rows_k.get(), cuda::Type::kBF16, 0, width, shape.d};
    p.v = {rows_v.get(), cuda::Type::kBF16, 0, width, shape.d};
    p.slots = device_slots.get();
    p.tokens = total;
    Ok(cuda::Append(p, nullptr));
    Cuda(cudaDeviceSynchronize());
  }
  if (shape.has_raw) FillRaw(&random);
  Reload();
}

int History::PackedEnd(int sequence, int end) const {
  if (!shape_.has_raw) return end;
  if (end < shape_.packed_from) return std::min(shape_.sink, end);
  const int begin = shape_.raw_begin.empty() ? 0 : shape_.raw_begin[static_cast<size_t>(sequence)];
  return std::min(end, std::max({shape_.sink, end - shape_.raw_window, begin}));
}

// A pool of raw pages that holds what the queries see raw, and NaNs; a wild page for everything else.
void History::FillRaw(Random* random) {
  const int batch = static_cast<int>(shape_.lengths.size()), page = shape_.raw_page;
  int stride = 1, total = 0;
  for (const int length : shape_.lengths) stride = std::max(stride, (length + page - 1) / page), total += length;
  std::vector<int32_t> ids(static_cast<size_t>(total / page + 2 * batch) + 2);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  for (size_t i = ids.size(); i-- > 1;) {
    std::swap(ids[i], ids[static_cast<size_t>(random->Below(static_cast<int>(i) + 1))]);
  }
  std::vector<int32_t> table(static_cast<size_t>(batch * stride), 0x40000000);
  std::vector<int64_t> raw_slots;
  size_t next = 0;
  for (int b = 0; b < batch; ++b) {
    const int length = shape_.lengths[static_cast<size_t>(b)];
    const int first = PackedEnd(b, std::max(0, length - shape_.q_len + 1));
    for (int t = 0; t < length; ++t) {
      if (t >= shape_.sink && t < first) {
        raw_slots.push_back(-1);
        continue;
      }
      int32_t& id = table[static_cast<size_t>(b * stride + t / page)];
      if (id == 0x40000000) id = ids[next++];
      raw_slots.push_back(int64_t{id} * page + t % page);
    }
  }
  raw_pool_.block = {cuda::kRawBits, cuda::kRawBits, shape_.d};
  raw_pool_.bf16 = shape_.raw_bf16;
  raw_pool_.kv_heads = shape_.kv_heads;
  raw_pool_.page_tokens = page;
  raw_memory_ = DeviceArray<uint8_t>(ids.size() * raw_pool_.page_bytes());  // NaNs
  raw_pool_.data = raw_memory_.get();
  raw_table_ = DeviceArray<int32_t>(table);
  if (!shape_.raw_begin.empty()) {
    raw_begin_ = DeviceArray<int32_t>(std::vector<int32_t>(shape_.raw_begin.begin(), shape_.raw_begin.end()));
  }
  raw_ = {raw_pool_.data,    shape_.raw_bf16,   page, raw_table_.get(), stride, raw_begin_.get(), shape_.sink,
          shape_.raw_window, shape_.packed_from};
  if (total == 0) return;
  const DeviceArray<uint16_t> rows_k(k), rows_v(v);
  const DeviceArray<int64_t> device_slots(raw_slots);
  cuda::AppendParams p;
  p.pool = raw_pool_;
  const int64_t width = shape_.kv_heads * shape_.d;
  p.k = {rows_k.get(), cuda::Type::kBF16, 0, width, shape_.d};
  p.v = {rows_v.get(), cuda::Type::kBF16, 0, width, shape_.d};
  p.slots = device_slots.get();
  p.tokens = total;
  Ok(cuda::Append(p, nullptr));
  Cuda(cudaDeviceSynchronize());
}

void History::ReadRaw(int sequence, int kv_head, int token, Kv side, std::vector<double>* values) const {
  size_t row = static_cast<size_t>(token);
  for (int b = 0; b < sequence; ++b) row += static_cast<size_t>(shape_.lengths[static_cast<size_t>(b)]);
  const std::vector<uint16_t>& rows = side == Kv::kK ? k : v;
  values->clear();
  for (int c = 0; c < shape_.d; ++c) {
    const float value = BF16ToF32(rows[(row * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(kv_head)) *
                                           static_cast<size_t>(shape_.d) +
                                       static_cast<size_t>(c)]);
    values->push_back(static_cast<double>(shape_.raw_bf16 ? value : F16ToF32(F32ToF16(value))));
  }
}

int64_t History::Slot(int sequence, int token) const {
  const int page = pages_of_[static_cast<size_t>(sequence * table_stride_ + token / shape_.page_tokens)];
  return static_cast<int64_t>(page) * shape_.page_tokens + token % shape_.page_tokens;
}

const uint8_t* History::Block(int64_t slot, int kv_head) const {
  const int64_t blocks = shape_.page_tokens / kBlockTokens;
  return pages_.data() +
         ((slot / shape_.page_tokens * shape_.kv_heads + kv_head) * blocks + slot % shape_.page_tokens / kBlockTokens) *
             pool_.block.bytes();
}

uint32_t History::Stored(int64_t slot, int kv_head, Kv side, int channel) const {
  const int bits = pool_.block.bits(side);
  const cuda::Place at = cuda::PlaceOf(side, static_cast<int>(slot % kBlockTokens), channel);
  const uint8_t* group = Block(slot, kv_head) + pool_.block.codes(side) + at.group * cuda::GroupBytes(bits);
  uint32_t code = 0;
  cuda::ForEachPiece(bits, side, at.unit, at.e, [&](int word, int bit, int width, int shift) {
    uint32_t w;
    std::memcpy(&w, group + cuda::WordOffset(bits, at.lane, word), 4);
    code |= (w >> bit & ((1u << width) - 1)) << shift;
  });
  return code;
}

void History::ReadRecord(int64_t slot, int kv_head, Kv side, std::vector<uint8_t>* codes, uint16_t* scale) const {
  codes->clear();
  for (int c = 0; c < shape_.d; ++c) {
    const int stored = static_cast<int>(Stored(slot, kv_head, side, c));
    codes->push_back(static_cast<uint8_t>(cuda::CanonicalCode(pool_.block.bits(side), stored)));
  }
  std::memcpy(scale, Block(slot, kv_head) + pool_.block.scales(side) + 2 * (slot % kBlockTokens), 2);
}

float History::ReadRaw(int64_t slot, int kv_head, Kv side, int channel) const {
  const uint16_t value = static_cast<uint16_t>(Stored(slot, kv_head, side, channel));
  return shape_.bf16 ? BF16ToF32(value) : F16ToF32(value);
}

void History::Read(int sequence, int kv_head, int token, Kv side, std::vector<double>* levels, double* scale) const {
  const int64_t slot = Slot(sequence, token);
  levels->clear();
  if (!pool_.block.scaled()) {
    *scale = 1;
    for (int c = 0; c < shape_.d; ++c) levels->push_back(static_cast<double>(ReadRaw(slot, kv_head, side, c)));
    return;
  }
  std::vector<uint8_t> codes;
  uint16_t bits = 0;
  ReadRecord(slot, kv_head, side, &codes, &bits);
  *scale = static_cast<double>(BF16ToF32(bits));
  for (const uint8_t c : codes) levels->push_back(LevelsOf(pool_.block.bits(side)).level[c]);
}

}  // namespace tersekv::gpu
