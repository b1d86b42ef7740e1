// SPDX-License-Identifier: Apache-2.0
// The C ABI launches what the C++ functions launch: the same bytes and the same bits, on a stream given as an integer
// and captured in a graph.
#include <cstring>
#include <string>
#include <vector>

#include "tersekv/cuda_api.h"
#include "tests/cuda/gpu/abi_structs.h"
#include "tests/cuda/gpu/attend_case.h"
#include "tests/cuda/gpu/checks.h"

namespace tersekv::gpu {
namespace {

tersekv_cuda_attention AttentionOf(const cuda::AttendParams& p, const tersekv_cuda_pool* pool,
                                   const tersekv_cuda_raw* raw) {
  tersekv_cuda_attention a = {};
  a.struct_size = sizeof a;
  a.pool = pool;
  a.q = RowsOf(p.q);
  a.out = RowsOf(p.out);
  a.lse = p.lse;
  a.lengths = p.lengths;
  a.block_table = p.block_table;
  a.table_stride = p.table_stride;
  a.batch = p.batch;
  a.heads = p.heads;
  a.q_len = p.q_len;
  a.scale = p.scale;
  a.window = p.window;
  a.softcap = p.softcap;
  a.alibi_slopes = p.alibi_slopes;
  a.sinks = p.sinks;
  a.transformed_out = p.rotate_out ? 0 : 1;
  a.workspace = p.workspace;
  a.l_packed = p.l_packed;
  a.raw = raw;
  return a;
}

// Rows of the history once more, into other pages: those of Append; and out of them: those of Decompress.
void CheckTokens(const History& h, const tersekv_cuda_pool& theirs, uint64_t stream) {
  const int64_t width = h.shape().kv_heads * h.shape().d;
  const size_t bytes = h.pool().page_bytes() * h.pages();
  DeviceArray<uint8_t> pages(bytes);
  Cuda(cudaMemset(pages.get(), 0, bytes));
  DeviceArray<uint8_t> want_pages(bytes);
  Cuda(cudaMemset(want_pages.get(), 0, bytes));
  const DeviceArray<uint16_t> k(h.k), v(h.v);
  const DeviceArray<int64_t> slots(h.slots);
  cuda::AppendParams p;
  p.pool = h.pool();
  p.pool.data = want_pages.get();
  p.k = {k.get(), cuda::Type::kBF16, 0, width, h.shape().d};
  p.v = {v.get(), cuda::Type::kBF16, 0, width, h.shape().d};
  p.slots = slots.get();
  p.tokens = static_cast<int>(h.slots.size());
  Ok(cuda::Append(p, nullptr));
  tersekv_cuda_pool pool = theirs;
  pool.pages = pages.get();
  tersekv_cuda_tokens t = {};
  t.struct_size = sizeof t;
  t.pool = &pool;
  t.k = RowsOf(p.k), t.v = RowsOf(p.v);
  t.slots = slots.get();
  t.tokens = p.tokens;
  Abi(tersekv_cuda_append(&t, stream));
  Cuda(cudaDeviceSynchronize());
  GPU_EXPECT(pages.Download() == want_pages.Download(), "pages of the C ABI differ");

  const size_t n = h.k.size();
  DeviceArray<float> back_k(n), back_v(n), want_k(n), want_v(n);
  cuda::DecompressParams d;
  d.pool = p.pool;
  d.k = {want_k.get(), cuda::Type::kF32, 0, width, h.shape().d};
  d.v = {want_v.get(), cuda::Type::kF32, 0, width, h.shape().d};
  d.slots = slots.get();
  d.tokens = p.tokens;
  Ok(cuda::Decompress(d, nullptr));
  t.k = RowsOf({back_k.get(), cuda::Type::kF32, 0, width, h.shape().d});
  t.v = RowsOf({back_v.get(), cuda::Type::kF32, 0, width, h.shape().d});
  Abi(tersekv_cuda_decompress(&t, stream));
  Cuda(cudaDeviceSynchronize());
  GPU_EXPECT(back_k.Download() == want_k.Download() && back_v.Download() == want_v.Download(),
             "rows of the C ABI differ");
}

}  // namespace

void CheckAbi(bool small) {
  Random random(15);
  cudaStream_t stream;
  Cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const uint64_t handle = reinterpret_cast<uint64_t>(stream);
  std::string text(300, '\0');
  for (int i = 0; i < (small ? 2 : 6); ++i) {
    HistoryShape shape;
    shape.has_raw = i % 2 == 1;
    AttendCase c = AttendCase::Make(shape, i, small, &random);
    const cuda::AttendParams p = c.Params();
    const tersekv_cuda_format format = FormatOf(p.pool);
    GPU_EXPECT(tersekv_cuda_page_bytes(&format, p.pool.kv_heads) == p.pool.page_bytes(), "page bytes");
    const tersekv_cuda_pool pool = PoolOf(p.pool, &format, p.pool.data);
    const tersekv_cuda_format raw_format = FormatOf(c.history->raw_pool());
    const tersekv_cuda_pool raw_pool = PoolOf(c.history->raw_pool(), &raw_format, c.history->raw_pool().data);
    const tersekv_cuda_raw raw = RawOf(p.raw, &raw_pool);
    const tersekv_cuda_attention a = AttentionOf(p, &pool, shape.has_raw ? &raw : nullptr);
    size_t bytes = 0;
    Abi(tersekv_cuda_workspace_bytes(&a, &bytes));
    GPU_EXPECT(bytes == c.workspace.size(), "workspace of %zu bytes, want %zu", bytes, c.workspace.size());
    Abi(tersekv_cuda_describe(&format, c.heads, p.pool.kv_heads, c.q_len, text.data(), text.size()));
    GPU_EXPECT(text.find("4 and 4 bits") != std::string::npos, "'%s'", text.c_str());
    if (!shape.has_raw) CheckTokens(*c.history, pool, handle);

    std::vector<float> want, want_lse, got, got_lse;
    c.Run(&want, &want_lse);
    const std::vector<float> want_packed = c.l_packed.Download();
    c.Poison();
    Cuda(cudaDeviceSynchronize());
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Abi(tersekv_cuda_plan(&a, handle));
    Abi(tersekv_cuda_attend(&a, handle));
    Cuda(cudaStreamEndCapture(stream, &graph));
    Cuda(cudaGraphInstantiate(&exec, graph, 0));
    Cuda(cudaGraphLaunch(exec, stream));
    Cuda(cudaStreamSynchronize(stream));
    c.Read(&got, &got_lse);
    GPU_EXPECT(std::memcmp(want.data(), got.data(), want.size() * 4) == 0, "%s: C ABI differs", c.Name().c_str());
    GPU_EXPECT(std::memcmp(want_lse.data(), got_lse.data(), want_lse.size() * 4) == 0, "%s: lse", c.Name().c_str());
    GPU_EXPECT(want_packed == c.l_packed.Download(), "%s: l_packed", c.Name().c_str());
    Cuda(cudaGraphExecDestroy(exec));
    Cuda(cudaGraphDestroy(graph));
  }
  Cuda(cudaStreamDestroy(stream));
  std::printf("C ABI: append, decompress and attention as from C++, in a graph; %s\n", text.c_str());
}

}  // namespace tersekv::gpu
