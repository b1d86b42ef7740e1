// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gpu/attend_case.h"

#include <algorithm>

#include "src/base/half.h"

namespace tersekv::gpu {

AttendCase AttendCase::Make(HistoryShape shape, int index, bool small, Random* random) {
  const int page_sizes[] = {64, 16, 128, 32}, groups[] = {4, 1, 7, 8, 2, 6};
  AttendCase c;
  shape.page_tokens = page_sizes[index % 4];
  shape.kv_heads = 1 + random->Below(3);
  shape.stats = index % 2 == 0;
  shape.seed = random->Next() % 1000 + 1;
  const int batch = 1 + random->Below(6), longest = small ? 300 : index % 3 == 0 ? 3000 : 700;
  shape.lengths.assign(1, longest);
  for (int b = 1; b < batch; ++b) shape.lengths.push_back(b <= 2 ? b - 1 : random->Below(longest));
  std::swap(shape.lengths[0], shape.lengths[static_cast<size_t>(random->Below(batch))]);
  c.heads = shape.kv_heads * groups[index % 6];
  c.q_len = index < 2 ? 1 : 1 + random->Below(index % 2 == 0 ? 4 : 16);
  if (c.heads / shape.kv_heads * c.q_len > 64) c.q_len = 8;
  c.scale = (index % 4 == 3 ? 3.0f : 1.0f) / std::sqrt(static_cast<float>(shape.d));
  if (index > 0) {
    if (random->Below(3) == 0) c.window = 1 + random->Below(200);
    if (random->Below(3) == 0) c.softcap = 5 + 20 * static_cast<float>(random->Uniform());
    c.rotate_out = random->Below(4) != 0;
    for (int i = 0; i < c.heads && index % 3 == 1; ++i) c.sinks.push_back(3 * random->Gaussian());
    for (int i = 0; i < c.heads && index % 5 == 2; ++i) c.slopes.push_back(std::exp2(-static_cast<float>(i % 8 + 1)));
    c.q_type = static_cast<cuda::Type>(random->Below(3));
    if (index % 6 == 5) c.out_type = index % 4 == 1 ? cuda::Type::kF16 : cuda::Type::kBF16;
  }
  if (shape.has_raw) {
    shape.q_len = c.q_len;
    const int sinks[] = {4, 0, 64, 17}, windows[] = {128, 40, 1, 0, 300};
    shape.sink = sinks[index % 4];
    shape.raw_window = windows[index % 5];
    shape.packed_from = index % 3 == 0 ? shape.sink + 128 : 0;
    shape.raw_bf16 = index % 2 == 0;
    shape.raw_page = index % 3 == 1 ? 64 : 16;
    for (const int length : shape.lengths) {
      if (index % 4 != 2) break;
      shape.raw_begin.push_back(std::max(0, length - c.q_len - random->Below(100)));
    }
  }
  if (shape.k_bits == cuda::kRawBits && shape.bf16) c.q_type = cuda::Type::kBF16;
  c.history = std::make_shared<const History>(shape);

  const size_t n = shape.lengths.size() * static_cast<size_t>(c.q_len * c.heads * shape.d);
  std::vector<uint16_t> bits(n);
  for (size_t i = 0; i < n; ++i) {
    float v = random->Gaussian();
    if (c.q_type == cuda::Type::kF16) v = F16ToF32(bits[i] = F32ToF16(v));
    if (c.q_type == cuda::Type::kBF16) v = BF16ToF32(bits[i] = F32ToBF16(v));
    c.q.push_back(v);
  }
  if (c.q_type == cuda::Type::kF32) {
    c.q32 = DeviceArray<float>(c.q);
  } else {
    c.q16 = DeviceArray<uint16_t>(bits);
  }
  if (c.out_type == cuda::Type::kF32) {
    c.out32 = DeviceArray<float>(n);
  } else {
    c.out16 = DeviceArray<uint16_t>(n);
  }
  if (!c.sinks.empty()) c.device_sinks = DeviceArray<float>(c.sinks);
  if (!c.slopes.empty()) c.device_slopes = DeviceArray<float>(c.slopes);
  c.lse = DeviceArray<float>(n / static_cast<size_t>(shape.d));
  c.l_packed = DeviceArray<float>(n / static_cast<size_t>(shape.d));
  size_t bytes = 0;
  Ok(cuda::WorkspaceBytes(c.Params(), &bytes));
  c.workspace = DeviceArray<uint8_t>(bytes);
  return c;
}

cuda::AttendParams AttendCase::Params() const {
  const HistoryShape& s = history->shape();
  const int64_t token = heads * s.d, batch = token * q_len;
  cuda::AttendParams p;
  p.pool = history->pool();
  p.q = {q_type == cuda::Type::kF32 ? static_cast<void*>(q32.get()) : q16.get(), q_type, batch, token, s.d};
  p.out = {out_type == cuda::Type::kF32 ? static_cast<void*>(out32.get()) : out16.get(), out_type, batch, token, s.d};
  p.lse = lse.get();
  p.lengths = history->lengths();
  p.block_table = history->table();
  p.table_stride = history->table_stride();
  p.batch = static_cast<int>(s.lengths.size());
  p.heads = heads;
  p.q_len = q_len;
  p.scale = scale;
  p.window = window;
  p.softcap = softcap;
  p.sinks = device_sinks.get();
  p.alibi_slopes = device_slopes.get();
  p.rotate_out = rotate_out;
  p.raw = history->raw();
  p.l_packed = l_packed.get();
  p.workspace = workspace.get();
  return p;
}

void AttendCase::Launch(cudaStream_t stream) const {
  Ok(cuda::PlanAttend(Params(), stream));
  Ok(cuda::Attend(Params(), stream));
}

void AttendCase::Poison() {
  if (out32.size() > 0) out32.Poison();
  if (out16.size() > 0) out16.Poison();
  lse.Poison();
  l_packed.Poison();
}

void AttendCase::Read(std::vector<float>* out, std::vector<float>* lse_out) const {
  if (out_type == cuda::Type::kF32) {
    *out = out32.Download();
  } else {
    out->clear();
    for (const uint16_t v : out16.Download()) out->push_back(out_type == cuda::Type::kF16 ? F16ToF32(v) : BF16ToF32(v));
  }
  *lse_out = lse.Download();
}

void AttendCase::Run(std::vector<float>* out, std::vector<float>* lse_out) {
  Poison();
  Launch(nullptr);
  Cuda(cudaDeviceSynchronize());
  Read(out, lse_out);
}

std::string AttendCase::Name() const {
  const HistoryShape& s = history->shape();
  return "k" + std::to_string(s.k_bits) + "v" + std::to_string(s.v_bits) + " d " + std::to_string(s.d) + " page " +
         std::to_string(s.page_tokens) + " heads " + std::to_string(heads) + "/" + std::to_string(s.kv_heads) +
         " q_len " + std::to_string(q_len) + " window " + std::to_string(window) + (softcap > 0 ? " softcap" : "") +
         (sinks.empty() ? "" : " sinks") + (slopes.empty() ? "" : " alibi") + (s.stats ? " stats" : "") +
         (rotate_out ? "" : " unrotated") +
         (!s.has_raw ? ""
                     : std::string(s.raw_bf16 ? " raw bf16" : " raw f16") + " sink " + std::to_string(s.sink) +
                           " win " + std::to_string(s.raw_window) + " from " + std::to_string(s.packed_from) +
                           (s.raw_begin.empty() ? "" : " begin"));
}

}  // namespace tersekv::gpu
