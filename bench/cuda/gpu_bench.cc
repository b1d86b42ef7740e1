// SPDX-License-Identifier: Apache-2.0
// Times attention, append and decompress on the device at hand; scripts/gpu_bench.py puts other attention beside it.
//   tersekv_gpu_bench attend SHAPES SPECS [--warps N] [--slots N] [--page N] [--sink N --win N]
//   tersekv_gpu_bench append SPECS
// SHAPES: B,heads,kv_heads,q_len,context;... With sinks or a window these tokens are bf16 rows beside the packed ones.
// One line a case: name=value pairs. Pools are rotated so that the cache of the device does not help; outputs are
// looked at. single: a graph of one launch between two events; chain: a graph of one launch a pool, a launch.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/cuda/latent_bench.h"
#include "bench/cuda/timing.h"
#include "src/base/half.h"
#include "src/cuda/attend_launch.h"
#include "tests/cuda/gpu/harness.h"

namespace tersekv::gpu {
namespace {

constexpr double kRoof = 4.4e12;  // bytes/s that the best streaming kernels reach on an H200

struct Options {
  int warps = 0, slots = 0, page = 64, sink = 0, win = 0;
  bool raw() const { return sink > 0 || win > 0; }
};

cuda::BlockLayout ParseSpec(const std::string& spec, bool* bf16) {  // k4v4-128, bf16-128
  const int d = std::stoi(spec.substr(spec.find('-') + 1));
  *bf16 = spec[0] == 'b';
  if (spec[0] != 'k') return {cuda::kRawBits, cuda::kRawBits, d};
  return {spec[1] - '0', spec[3] - '0', d};
}

// Random blocks with scales of ordinary size.
DeviceArray<uint8_t> FillPool(const cuda::BlockLayout& block, size_t bytes) {
  Random random(1);
  const size_t size = static_cast<size_t>(block.bytes()), blocks = std::min<size_t>(20000, bytes / size);
  std::vector<uint8_t> host(blocks * size);
  for (size_t i = 0; i + 8 <= host.size(); i += 8) {
    const uint64_t v = random.Next();
    std::memcpy(&host[i], &v, 8);
  }
  for (size_t b = 0; b < blocks; ++b) {
    for (size_t i = 0; i < (block.scaled() ? 32 : static_cast<size_t>(block.d) * 32); ++i) {
      const float v = block.scaled() ? 0.01f * (1 + static_cast<float>(random.Uniform())) : random.Gaussian();
      const uint16_t bits = F32ToBF16(v);
      std::memcpy(&host[b * size + static_cast<size_t>(block.scaled() ? block.scales(Kv::kK) : 0) + 2 * i], &bits, 2);
    }
  }
  DeviceArray<uint8_t> pool(bytes);
  for (size_t at = 0; at < bytes; at += host.size()) {
    Cuda(cudaMemcpy(pool.get() + at, host.data(), std::min(host.size(), bytes - at), cudaMemcpyHostToDevice));
  }
  return pool;
}

// The raw rows of all pools: a page for the sinks and a ring for the window of each sequence.
struct RawPool {
  static constexpr int kPage = 16;
  int ring, stride, batch;
  size_t bytes;  // that a launch reads
  DeviceArray<uint8_t> memory;
  DeviceArray<int32_t> table;  // [pools][batch][stride]
  cuda::RawTokens tokens;

  RawPool(const Options& options, int batch_, int kv_heads, int d, int context, int q_len, int pools) : batch(batch_) {
    const cuda::BlockLayout block{cuda::kRawBits, cuda::kRawBits, d};
    ring = (options.win + q_len - 1 + kPage - 1) / kPage + 1;
    stride = (context + kPage - 1) / kPage;
    const size_t page = static_cast<size_t>(block.bytes() * kv_heads);
    bytes = static_cast<size_t>(batch * (options.sink + options.win)) * page / kPage;
    memory = FillPool(block, page * static_cast<size_t>(batch * pools * (ring + 1)));
    std::vector<int32_t> ids;
    for (int s = 0; s < batch * pools; ++s) {
      for (int i = 0; i < stride; ++i) ids.push_back(s * (ring + 1) + (i == 0 ? 0 : 1 + i % ring));
    }
    table = DeviceArray<int32_t>(ids);
    tokens = {memory.get(), true, kPage, table.get(), stride, nullptr, options.sink, options.win, 0};
  }
  cuda::RawTokens Of(int pool) const {
    cuda::RawTokens own = tokens;
    own.table += static_cast<size_t>(pool) * static_cast<size_t>(batch * stride);
    return own;
  }
};

void BenchAttend(const std::vector<int>& s, const std::string& spec, const Options& options) {
  const int batch = s[0], heads = s[1], kv_heads = s[2], q_len = s[3], context = s[4];
  cuda::AttendParams p;
  p.pool.block = ParseSpec(spec, &p.pool.bf16);
  const int d = p.pool.block.d;
  p.pool.kv_heads = kv_heads;
  p.pool.page_tokens = options.page;
  const int pages = batch * ((context + options.page - 1) / options.page);
  const int packed = context - options.sink - options.win;
  double bytes = static_cast<double>(batch) * packed / cuda::kBlockTokens * kv_heads * p.pool.block.bytes();
  const int pools = std::max(2, std::min(64, static_cast<int>(kRotatedBytes / bytes) + 1));
  std::vector<RawPool> raw;
  if (options.raw()) {
    raw.emplace_back(options, batch, kv_heads, d, context, q_len, pools);
    bytes += static_cast<double>(raw[0].bytes);
    p.raw = raw[0].tokens;
  }
  const DeviceArray<uint8_t> memory = FillPool(p.pool.block, p.pool.page_bytes() * static_cast<size_t>(pages * pools));
  p.pool.data = memory.get();
  Random random(2);
  std::vector<int32_t> table(static_cast<size_t>(pages * pools));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  for (size_t i = table.size(); i-- > 1;) std::swap(table[i], table[random.Next() % (i + 1)]);
  const DeviceArray<int32_t> device_table(table);
  const DeviceArray<int32_t> lengths(std::vector<int32_t>(static_cast<size_t>(batch), context));
  std::vector<uint16_t> q;
  for (int i = 0; i < batch * q_len * heads * d; ++i) q.push_back(F32ToBF16(random.Gaussian()));
  const DeviceArray<uint16_t> device_q(q);
  DeviceArray<uint16_t> out(q.size());
  p.q = {device_q.get(), cuda::Type::kBF16, int64_t{q_len} * heads * d, int64_t{heads} * d, d};
  p.out = {out.get(), cuda::Type::kBF16, int64_t{q_len} * heads * d, int64_t{heads} * d, d};
  p.lengths = lengths.get();
  p.table_stride = pages / batch;
  p.batch = batch;
  p.heads = heads;
  p.q_len = q_len;
  p.scale = 1.0f / std::sqrt(static_cast<float>(d));

  const cuda::AttendKernel* kernel = cuda::FindAttendKernel(p.pool.block.k_bits, p.pool.block.v_bits, d, p.pool.bf16);
  if (kernel == nullptr) {
    std::printf("spec=%s is not built\n", spec.c_str());
    return;
  }
  cuda::AttendShape shape{};
  shape.warps = options.warps;
  shape.slots = options.slots;
  Ok(kernel->shape(heads / kv_heads * q_len, options.raw(), &shape));
  const cuda::WorkspaceLayout layout(shape.blocks, batch, kv_heads, shape.row_tiles, shape.rows, d, options.raw());
  const DeviceArray<uint8_t> workspace(layout.bytes);
  p.workspace = workspace.get();
  const cuda::PlanShape plan{batch, kv_heads, q_len, 0, shape.tile_tokens, shape.blocks, shape.row_tiles * shape.rows,
                             p.raw};
  p.block_table = device_table.get();
  double plan_us = 0, plan_chain = 0, chain = 0, single = 0;
  Time(
      2, [&](int, cudaStream_t stream) { Ok(cuda::LaunchPlan(plan, p.lengths, layout.At(p.workspace), stream)); },
      &plan_chain, &plan_us);
  Time(
      pools,
      [&](int r, cudaStream_t stream) {
        cuda::AttendParams own = p;
        if (options.raw()) own.raw = raw[0].Of(r);
        own.block_table = device_table.get() + static_cast<size_t>(r) * static_cast<size_t>(pages);
        Ok(kernel->launch(own, shape, stream));
      },
      &chain, &single);
  double squares = 0;
  for (const uint16_t v : out.Download()) squares += std::pow(static_cast<double>(BF16ToF32(v)), 2);
  GPU_EXPECT(std::isfinite(squares) && squares > 0, "%s: outputs are not finite or all zero", spec.c_str());
  std::printf(
      "attend spec=%s B=%d heads=%d kv_heads=%d q_len=%d context=%d page=%d sink=%d win=%d MB=%.1f warps=%d slots=%d "
      "chain_us=%.2f "
      "single_us=%.2f roof_chain=%.3f roof_single=%.3f plan_us=%.2f\n",
      spec.c_str(), batch, heads, kv_heads, q_len, context, options.page, options.sink, options.win, bytes * 1e-6,
      shape.warps, shape.slots, chain, single, 1e6 * bytes / kRoof / chain, 1e6 * bytes / kRoof / single, plan_chain);
  std::fflush(stdout);
}

// Out of the pages that append has filled: by slots, by slots that are no whole blocks, and ranges of a block table, in
// transformed space or not.
void BenchDecompress(const std::string& spec, const cuda::AppendParams& from, int tokens) {
  const double bytes = static_cast<double>(tokens) / cuda::kBlockTokens * 8 *
                       (from.pool.block.bytes() + 4.0 * cuda::kBlockTokens * from.pool.block.d);
  cuda::DecompressParams p;
  p.pool = from.pool;
  p.k = from.k;
  p.v = from.v;
  p.tokens = tokens;
  p.batch = 1;
  const DeviceArray<int32_t> length(std::vector<int32_t>(1, tokens));
  std::vector<int32_t> table;
  for (int i = 0; i * from.pool.page_tokens < tokens; ++i) table.push_back(i);
  const DeviceArray<int32_t> device_table(table);
  p.lengths = length.get();
  p.block_table = device_table.get();
  p.table_stride = static_cast<int64_t>(table.size());
  for (const char* how : {"slots", "shifted", "range", "transformed"}) {
    const bool slots = how[0] == 's', shifted = how[1] == 'h';
    cuda::DecompressParams own = p;
    own.slots = slots ? from.slots + (shifted ? 1 : 0) : nullptr;
    own.tokens = tokens - (shifted ? 1 : 0);
    own.transformed = how[0] == 't';
    double chain = 0, single = 0;
    Time(
        2, [&](int, cudaStream_t stream) { Ok(cuda::Decompress(own, stream)); }, &chain, &single);
    std::printf("decompress spec=%s tokens=%d how=%s us=%.2f chain_us=%.2f in_out_TBps=%.3f chain_TBps=%.3f\n",
                spec.c_str(), own.tokens, how, single, chain, bytes / single * 1e-6, bytes / chain * 1e-6);
  }
}

void BenchAppend(const std::string& spec, int tokens) {
  cuda::AppendParams p;
  p.pool.block = ParseSpec(spec, &p.pool.bf16);
  p.pool.kv_heads = 8;
  const int d = p.pool.block.d, width = 8 * d;
  const size_t values = static_cast<size_t>(tokens) * static_cast<size_t>(width);
  const DeviceArray<uint8_t> memory(p.pool.page_bytes() * static_cast<size_t>((tokens + 63) / 64));
  p.pool.data = memory.get();
  Random random(3);
  std::vector<uint16_t> rows(std::min<size_t>(values, 1 << 22));
  for (uint16_t& v : rows) v = F32ToBF16(random.Gaussian());
  DeviceArray<uint16_t> k(values), v(values);
  for (size_t at = 0; at < values; at += rows.size()) {
    const size_t n = 2 * std::min(rows.size(), values - at);
    Cuda(cudaMemcpy(k.get() + at, rows.data(), n, cudaMemcpyHostToDevice));
    Cuda(cudaMemcpy(v.get() + at, rows.data(), n, cudaMemcpyHostToDevice));
  }
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  const DeviceArray<int64_t> device_slots(slots);
  p.k = {k.get(), cuda::Type::kBF16, 0, width, d};
  p.v = {v.get(), cuda::Type::kBF16, 0, width, d};
  p.slots = device_slots.get();
  p.tokens = tokens;
  double chain = 0, single = 0;
  Time(
      2, [&](int, cudaStream_t stream) { Ok(cuda::Append(p, stream)); }, &chain, &single);
  const double in = 4.0 * static_cast<double>(values),
               out = static_cast<double>(tokens) / cuda::kBlockTokens * 8 * p.pool.block.bytes();
  std::printf("append spec=%s tokens=%d us=%.2f in_TBps=%.3f in_out_TBps=%.3f\n", spec.c_str(), tokens, single,
              in / single * 1e-6, (in + out) / single * 1e-6);
  BenchDecompress(spec, p, tokens);
}

std::vector<std::string> Split(const std::string& text, char by) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == by) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace
}  // namespace tersekv::gpu

int main(int argc, char** argv) {
  using namespace tersekv::gpu;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "attend" && argc >= 4) {
    Options options;
    for (int i = 4; i + 1 < argc; i += 2) {
      const std::string name = argv[i];
      int* const option = name == "--warps"   ? &options.warps
                          : name == "--slots" ? &options.slots
                          : name == "--page"  ? &options.page
                          : name == "--sink"  ? &options.sink
                          : name == "--win"   ? &options.win
                                              : nullptr;
      if (option == nullptr) {
        std::printf("%s is no option\n", argv[i]);
        return 2;
      }
      *option = std::atoi(argv[i + 1]);
    }
    for (const std::string& shape : Split(argv[2], ';')) {
      std::vector<int> numbers;
      for (const std::string& n : Split(shape, ',')) numbers.push_back(std::stoi(n));
      for (const std::string& spec : Split(argv[3], ',')) BenchAttend(numbers, spec, options);
    }
  } else if (what == "append" && argc >= 3) {
    for (const std::string& spec : Split(argv[2], ',')) {
      for (const int tokens : {64, 8192, 131072}) BenchAppend(spec, tokens);
    }
  } else if (what == "latents" && argc >= 3) {
    for (const std::string& bits : Split(argv[2], ',')) {
      for (const auto& [batch, context] : {std::pair{1, 8192}, {1, 32768}, {8, 8192}, {32, 8192}}) {
        BenchLatents(std::stoi(bits), batch, context);
      }
    }
  } else {
    std::printf(
        "usage: tersekv_gpu_bench attend SHAPES SPECS [--warps N] [--slots N] [--page N] [--sink N --win N] | append "
        "SPECS | latents BITS\n");
    return 2;
  }
  return failures == 0 ? 0 : 1;
}
