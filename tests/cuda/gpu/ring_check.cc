// SPDX-License-Identifier: Apache-2.0
// Raw tokens as a host keeps them: a ring of raw pages a sequence, and what leaves the window packed from its raw row,
// step by step through the C ABI. Attention then gives the bits that it gives over a history that was written at once.
#include <cstring>
#include <vector>

#include "tests/cuda/gpu/abi_structs.h"
#include "tests/cuda/gpu/attend_case.h"
#include "tests/cuda/gpu/checks.h"

namespace tersekv::gpu {

void CheckRing() {
  constexpr int kPage = 16, kSteps[] = {1, 3, 16, 1, 7};
  HistoryShape shape;
  shape.has_raw = true;
  shape.lengths = {411};
  shape.q_len = 1, shape.sink = 4, shape.raw_window = 50, shape.packed_from = 4 + 128;
  const History h(shape);
  const int64_t width = shape.kv_heads * shape.d;
  const int length = shape.lengths[0];

  // The host's side: its own pools, and a table that does not change.
  const int ring = (shape.raw_window + 16 - 1 + kPage - 1) / kPage + 1 + 8;  // 8: nothing is packed before packed_from
  DeviceArray<uint8_t> pages(h.pages() * h.pool().page_bytes()),
      raw_pages(static_cast<size_t>(ring + 1) * h.raw_pool().page_bytes());
  std::vector<int32_t> table;
  for (int i = 0; i * kPage < length; ++i) table.push_back(i == 0 ? 0 : 1 + i % ring);
  const DeviceArray<int32_t> raw_table(table);
  std::vector<int32_t> block_table;
  for (int i = 0; i * 64 < length; ++i) block_table.push_back(i);
  const DeviceArray<int32_t> packed_table(block_table);
  const tersekv_cuda_format format = FormatOf(h.pool()), raw_format = FormatOf(h.raw_pool());
  const tersekv_cuda_pool pool = PoolOf(h.pool(), &format, pages.get()),
                          raw_pool = PoolOf(h.raw_pool(), &raw_format, raw_pages.get());
  const DeviceArray<uint16_t> k(h.k), v(h.v);
  DeviceArray<uint16_t> leaving_k(static_cast<size_t>(256 * width)), leaving_v(static_cast<size_t>(256 * width));
  const auto move = [&](const tersekv_cuda_pool* to, auto launch, uint16_t* rows_k, uint16_t* rows_v,
                        const std::vector<int64_t>& slots) {
    if (slots.empty()) return;
    const DeviceArray<int64_t> device_slots(slots);
    tersekv_cuda_tokens t = {};
    t.struct_size = sizeof t;
    t.pool = to;
    t.k = RowsOf({rows_k, cuda::Type::kBF16, 0, width, shape.d});
    t.v = RowsOf({rows_v, cuda::Type::kBF16, 0, width, shape.d});
    t.slots = device_slots.get();
    t.tokens = static_cast<int32_t>(slots.size());
    Abi(launch(&t, 0));
    Cuda(cudaDeviceSynchronize());
  };
  const auto raw_slot = [&](int t) { return int64_t{table[static_cast<size_t>(t / kPage)]} * kPage + t % kPage; };
  int packed = shape.sink;
  for (int at = 0, step = 0; at < length; ++step) {
    const int end = std::min(length, at + kSteps[step % 5]);
    std::vector<int64_t> in, from, to;
    for (int t = at; t < end; ++t) in.push_back(raw_slot(t));
    move(&raw_pool, tersekv_cuda_append, k.get() + at * width, v.get() + at * width, in);
    for (; packed < h.PackedEnd(0, end); ++packed) {
      from.push_back(raw_slot(packed));
      to.push_back(packed - shape.sink);
    }
    move(&raw_pool, tersekv_cuda_decompress, leaving_k.get(), leaving_v.get(), from);
    move(&pool, tersekv_cuda_append, leaving_k.get(), leaving_v.get(), to);
    at = end;
  }

  const int heads = 4 * shape.kv_heads;
  Random random(3);
  std::vector<float> q(static_cast<size_t>(heads * shape.d));
  for (float& x : q) x = random.Gaussian();
  const DeviceArray<float> device_q(q);
  DeviceArray<float> out[2] = {DeviceArray<float>(q.size()), DeviceArray<float>(q.size())};
  tersekv_cuda_raw raw = RawOf(h.raw(), &raw_pool);
  const tersekv_cuda_pool once = PoolOf(h.pool(), &format, h.pool().data),
                          once_raw = PoolOf(h.raw_pool(), &raw_format, h.raw_pool().data);
  for (int i = 0; i < 2; ++i) {
    tersekv_cuda_attention a = {};
    a.struct_size = sizeof a;
    a.pool = i == 0 ? &once : &pool;
    a.q = RowsOf({const_cast<float*>(device_q.get()), cuda::Type::kF32, heads * shape.d, heads * shape.d, shape.d});
    a.out = RowsOf({out[i].get(), cuda::Type::kF32, heads * shape.d, heads * shape.d, shape.d});
    a.lengths = h.lengths();
    a.block_table = i == 0 ? h.table() : packed_table.get();
    a.table_stride = i == 0 ? h.table_stride() : static_cast<int64_t>(block_table.size());
    a.batch = 1, a.heads = heads, a.q_len = 1, a.scale = 0.1f;
    raw.pool = i == 0 ? &once_raw : &raw_pool;
    raw.table = i == 0 ? h.raw().table : raw_table.get();
    a.raw = &raw;
    size_t bytes = 0;
    Abi(tersekv_cuda_workspace_bytes(&a, &bytes));
    const DeviceArray<uint8_t> workspace(bytes);
    a.workspace = workspace.get();
    Abi(tersekv_cuda_plan(&a, 0));
    Abi(tersekv_cuda_attend(&a, 0));
    Cuda(cudaDeviceSynchronize());
  }
  const std::vector<float> want = out[0].Download(), got = out[1].Download();
  GPU_EXPECT(std::isfinite(want[0]) && std::memcmp(want.data(), got.data(), want.size() * 4) == 0,
             "a ring of raw pages gives other bits: %g, want %g", static_cast<double>(got[0]),
             static_cast<double>(want[0]));
  std::printf("ring: %d tokens through %d raw pages, packed as they leave a window of %d\n", length, ring + 1,
              shape.raw_window);
}

}  // namespace tersekv::gpu
