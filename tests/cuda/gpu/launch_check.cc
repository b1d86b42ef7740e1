// SPDX-License-Identifier: Apache-2.0
// Launches in graphs, on two streams, and those that are refused.
#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda/gpu/attend_case.h"
#include "tests/cuda/gpu/checks.h"

namespace tersekv::gpu {
namespace {

HistoryShape Shape(uint64_t seed) {
  HistoryShape shape;
  shape.seed = seed;
  return shape;
}

void ExpectEqual(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  GPU_EXPECT(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0, "%s differs", what);
}

}  // namespace

// A graph captured once follows lengths that change between replays.
void CheckGraph() {
  Random random(11);
  AttendCase c = AttendCase::Make(Shape(5), 0, false, &random);
  std::vector<float> want, got, lse;
  cudaStream_t stream;
  Cuda(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  c.Launch(stream);
  Cuda(cudaStreamEndCapture(stream, &graph));
  Cuda(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<int32_t> lengths(c.history->shape().lengths.begin(), c.history->shape().lengths.end());
  for (int round = 0; round < 4; ++round) {
    for (int32_t& n : lengths) n = round == 3 ? 0 : n - n / 3;
    Cuda(cudaMemcpy(const_cast<int32_t*>(c.history->lengths()), lengths.data(), lengths.size() * 4,
                    cudaMemcpyHostToDevice));
    c.Run(&want, &lse);
    c.Poison();
    Cuda(cudaDeviceSynchronize());
    Cuda(cudaGraphLaunch(exec, stream));
    Cuda(cudaStreamSynchronize(stream));
    c.Read(&got, &lse);
    ExpectEqual(want, got, "a replayed graph");
  }
  Cuda(cudaGraphExecDestroy(exec));
  Cuda(cudaGraphDestroy(graph));
  Cuda(cudaStreamDestroy(stream));
  std::printf("graph: captured once, replayed with 4 sets of lengths\n");
}

void CheckStreams() {
  Random random(12);
  AttendCase a = AttendCase::Make(Shape(6), 0, false, &random), b = AttendCase::Make(Shape(7), 4, false, &random);
  std::vector<float> want_a, want_b, got, lse;
  a.Run(&want_a, &lse);
  b.Run(&want_b, &lse);
  a.Poison();
  b.Poison();
  cudaStream_t streams[2];
  for (cudaStream_t& s : streams) Cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  Cuda(cudaDeviceSynchronize());
  for (int i = 0; i < 50; ++i) {
    a.Launch(streams[0]);
    b.Launch(streams[1]);
  }
  Cuda(cudaDeviceSynchronize());
  a.Read(&got, &lse);
  ExpectEqual(want_a, got, "stream 0");
  b.Read(&got, &lse);
  ExpectEqual(want_b, got, "stream 1");
  for (cudaStream_t& s : streams) Cuda(cudaStreamDestroy(s));
  std::printf("streams: 50 launches on each of two\n");
}

// One page over and over gives what it gives once: a warp hands over more than once a sequence.
void CheckLong() {
  constexpr int kRepeats = 1 << 17;
  if (std::string(cuda::KernelList()).find("k3v3-128") == std::string::npos) return;
  Random random(14);
  HistoryShape shape = Shape(9);
  shape.k_bits = shape.v_bits = 3;
  AttendCase c = AttendCase::Make(shape, 0, false, &random);
  const std::vector<int>& lengths = c.history->shape().lengths;
  int longest = 0;
  for (int b = 0; b < static_cast<int>(lengths.size()); ++b) {
    if (lengths[static_cast<size_t>(b)] > lengths[static_cast<size_t>(longest)]) longest = b;
  }
  const int32_t page = static_cast<int32_t>(c.history->Slot(longest, 0) / 64);
  const DeviceArray<int32_t> table(std::vector<int32_t>(kRepeats, page));
  std::vector<float> out[2], lse[2];
  for (int i = 0; i < 2; ++i) {
    const DeviceArray<int32_t> length(std::vector<int32_t>(1, 64 * (i == 0 ? 1 : kRepeats)));
    cuda::AttendParams p = c.Params();
    p.batch = 1, p.lengths = length.get(), p.block_table = table.get(), p.table_stride = kRepeats;
    c.Poison();
    Ok(cuda::PlanAttend(p, nullptr));
    Ok(cuda::Attend(p, nullptr));
    Cuda(cudaDeviceSynchronize());
    c.Read(&out[i], &lse[i]);
  }
  double error = 0, norm = 0;
  for (size_t j = 0; j < static_cast<size_t>(c.heads * c.history->shape().d); ++j) {
    const double want = static_cast<double>(out[0][j]), e = static_cast<double>(out[1][j]) - want;
    error += e * e, norm += want * want;
  }
  GPU_EXPECT(std::sqrt(error / norm) <= 5e-4, "error %.2e", std::sqrt(error / norm));
  for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
    const double more = static_cast<double>(lse[1][h]) - static_cast<double>(lse[0][h]);
    GPU_EXPECT(std::fabs(more - std::log(kRepeats)) < 2e-3, "lse is %g more", more);
  }
  std::printf("long: %d tokens, error %.1e\n", 64 * kRepeats, std::sqrt(error / norm));
}

void CheckRefusals() {
  Random random(13);
  const AttendCase c = AttendCase::Make(Shape(8), 0, true, &random);
  const auto refused = [&](auto change, const char* text) {
    cuda::AttendParams p = c.Params();
    change(&p);
    const Status status = cuda::Attend(p, nullptr);
    GPU_EXPECT(!status.ok() && status.message().find(text) != std::string::npos, "'%s' is not in '%s'", text,
               status.message().c_str());
  };
  refused([](cuda::AttendParams* p) { p->pool.block.d = 80; }, "head_dim 80");
  refused([](cuda::AttendParams* p) { p->pool.block.k_bits = 7; }, "7 and 4 bits");
  refused([](cuda::AttendParams* p) { p->pool.page_tokens = 48; }, "48 tokens a page");
  refused([](cuda::AttendParams* p) { p->q_len = 17; }, "17 new tokens");
  refused([](cuda::AttendParams* p) { p->heads = p->pool.kv_heads + 1; }, "no multiple");
  refused([](cuda::AttendParams* p) { p->q.head_stride = 3; }, "16 bytes");
  refused([](cuda::AttendParams* p) { p->workspace = nullptr; }, "WorkspaceBytes");
  refused([](cuda::AttendParams* p) { p->block_table = nullptr; }, "block_table");
  static uint8_t memory[32];  // not looked at
  const auto raw_refused = [&](auto change, const char* text) {
    refused(
        [&](cuda::AttendParams* p) {
          p->raw.data = memory + (16 - reinterpret_cast<uintptr_t>(memory) % 16) % 16;
          change(p);
        },
        text);
  };
  raw_refused([](cuda::AttendParams*) {}, "raw tokens' table");
  raw_refused([](cuda::AttendParams* p) { ++p->raw.data; }, "raw pool's memory");
  raw_refused([](cuda::AttendParams* p) { p->raw.page_tokens = 24; }, "24 tokens a raw page");
  raw_refused([](cuda::AttendParams* p) { p->raw.window = -1; }, "must not be negative");
  raw_refused([](cuda::AttendParams* p) { p->pool.v.scale = p->pool.v.mean, p->pool.v.inv_scale = nullptr; },
              "v_inv_scale");
}

}  // namespace tersekv::gpu
