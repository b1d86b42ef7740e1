// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/latent_bench.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "bench/cuda/timing.h"
#include "src/base/half.h"
#include "src/cuda/latent.h"

namespace tersekv::gpu {

void BenchLatents(int bits, int batch, int context) {
  constexpr int kHeads = 128;
  cuda::LatentAttendParams p;
  p.pool.block = {bits};
  const int pages = (context + p.pool.page_tokens - 1) / p.pool.page_tokens;
  const double bytes = static_cast<double>(batch) * context / cuda::kBlockTokens * p.pool.block.bytes();
  const int pools = std::max(2, std::min(64, static_cast<int>(kRotatedBytes / bytes) + 1));
  const int64_t tokens = int64_t{pages} * p.pool.page_tokens * batch * pools;
  const DeviceArray<uint8_t> memory(p.pool.page_bytes() * static_cast<size_t>(pages * batch * pools));
  p.pool.data = memory.get();
  Random random(4);
  constexpr int kFew = 4096;  // rows that are repeated
  std::vector<uint16_t> rows(size_t{kFew} * cuda::kLatentKey);
  for (uint16_t& v : rows) v = F32ToBF16(random.Gaussian());
  const DeviceArray<uint16_t> device_rows(rows);
  double append_us = 0, append_chain = 0;
  for (int64_t first = 0; first < tokens; first += kFew) {
    std::vector<int64_t> slots(static_cast<size_t>(std::min<int64_t>(kFew, tokens - first)));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = first + static_cast<int64_t>(i);
    const DeviceArray<int64_t> device_slots(slots);
    cuda::LatentAppendParams a;
    a.pool = p.pool;
    a.latent = {device_rows.get(), cuda::Type::kBF16, 0, cuda::kLatentKey, 0};
    a.rotary = {device_rows.get() + cuda::kLatent, cuda::Type::kBF16, 0, cuda::kLatentKey, 0};
    a.slots = device_slots.get();
    a.tokens = static_cast<int>(slots.size());
    Ok(cuda::LatentAppend(a, nullptr));
    Cuda(cudaDeviceSynchronize());
    if (first > 0) continue;
    Time(
        2, [&](int, cudaStream_t stream) { Ok(cuda::LatentAppend(a, stream)); }, &append_chain, &append_us);
  }
  std::vector<int32_t> table(static_cast<size_t>(pages * batch * pools));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  for (size_t i = table.size(); i-- > 1;) std::swap(table[i], table[random.Next() % (i + 1)]);
  const DeviceArray<int32_t> device_table(table), lengths(std::vector<int32_t>(static_cast<size_t>(batch), context));
  std::vector<uint16_t> q(static_cast<size_t>(batch) * kHeads * cuda::kLatentKey);
  for (uint16_t& v : q) v = F32ToBF16(random.Gaussian());
  const DeviceArray<uint16_t> device_q(q);
  DeviceArray<uint16_t> out(static_cast<size_t>(batch) * kHeads * cuda::kLatent);
  p.q = {device_q.get(), cuda::Type::kBF16, int64_t{kHeads} * cuda::kLatentKey, 0, cuda::kLatentKey};
  p.out = {out.get(), cuda::Type::kBF16, int64_t{kHeads} * cuda::kLatent, 0, cuda::kLatent};
  p.lengths = lengths.get();
  p.table_stride = pages;
  p.batch = batch, p.heads = kHeads;
  p.scale = 0.07f;
  size_t size = 0;
  Ok(cuda::LatentWorkspaceBytes(p, &size));
  const DeviceArray<uint8_t> workspace(size);
  p.workspace = workspace.get();
  double chain = 0, single = 0;
  Time(
      pools,
      [&](int r, cudaStream_t stream) {
        cuda::LatentAttendParams own = p;
        own.block_table = device_table.get() + static_cast<size_t>(r * pages * batch);
        Ok(cuda::LatentAttend(own, stream));
      },
      &chain, &single);
  double squares = 0;
  for (const uint16_t v : out.Download()) squares += std::pow(static_cast<double>(BF16ToF32(v)), 2);
  GPU_EXPECT(std::isfinite(squares) && squares > 0, "latents: outputs are not finite or all zero");
  const double flops = 2.0 * batch * context * kHeads * (cuda::kLatentKey + cuda::kLatent);
  std::printf(
      "latents bits=%d B=%d heads=%d context=%d single_us=%.2f chain_us=%.2f TFLOPs=%.1f packed_TBps=%.3f "
      "append_%d_us=%.2f\n",
      bits, batch, kHeads, context, single, chain, flops / chain * 1e-6, bytes / chain * 1e-6, kFew, append_us);
  std::fflush(stdout);
}

}  // namespace tersekv::gpu
