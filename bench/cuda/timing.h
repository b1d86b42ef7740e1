// SPDX-License-Identifier: Apache-2.0
// Launches in graphs between two events.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/cuda/gpu/harness.h"

namespace tersekv::gpu {

inline constexpr double kRotatedBytes = 400e6;  // pools rotate over so much

inline double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Microseconds of a launch: in a chain of all pools, and alone.
inline void Time(int pools, const std::function<void(int, cudaStream_t)>& launch, double* chain_us, double* single_us) {
  cudaStream_t stream;
  Cuda(cudaStreamCreate(&stream));
  const auto capture = [&](int from, int to) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int r = from; r < to; ++r) launch(r, stream);
    Cuda(cudaStreamEndCapture(stream, &graph));
    Cuda(cudaGraphInstantiate(&exec, graph, 0));
    Cuda(cudaGraphDestroy(graph));
    return exec;
  };
  cudaEvent_t begin, end;
  Cuda(cudaEventCreate(&begin));
  Cuda(cudaEventCreate(&end));
  const auto timed = [&](cudaGraphExec_t exec) {
    float ms = 0;
    Cuda(cudaEventRecord(begin, stream));
    Cuda(cudaGraphLaunch(exec, stream));
    Cuda(cudaEventRecord(end, stream));
    Cuda(cudaEventSynchronize(end));
    Cuda(cudaEventElapsedTime(&ms, begin, end));
    return 1e3 * static_cast<double>(ms);
  };
  std::vector<double> chain, single;
  cudaGraphExec_t all = capture(0, pools);
  for (int i = 0; i < 18; ++i) {
    const double us = timed(all);
    if (i >= 3) chain.push_back(us / pools);
  }
  std::vector<cudaGraphExec_t> one;
  for (int r = 0; r < pools; ++r) one.push_back(capture(r, r + 1));
  for (int i = 0; i < 48; ++i) single.push_back(timed(one[static_cast<size_t>(i % pools)]));
  *chain_us = Median(chain);
  *single_us = Median(single);
  for (cudaGraphExec_t exec : one) Cuda(cudaGraphExecDestroy(exec));
  Cuda(cudaGraphExecDestroy(all));
  Cuda(cudaEventDestroy(begin));
  Cuda(cudaEventDestroy(end));
  Cuda(cudaStreamDestroy(stream));
}

}  // namespace tersekv::gpu
