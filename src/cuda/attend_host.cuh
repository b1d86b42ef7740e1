// SPDX-License-Identifier: Apache-2.0
// The host side of one attention instance: how a thread block is divided, and the launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "src/cuda/attend.cuh"

namespace tersekv::cuda {

template <class KL, class VL, int d>
struct AttendInstance {
  static Status Shape(int rows, bool raw, AttendShape* out) {
    CheckLoader<KL>();
    CheckLoader<VL>();
    int device = 0, blocks = 0, shared = 0, major = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error != cudaSuccess) return Unsupported(std::string("no CUDA device: ") + cudaGetErrorString(error));
    out->blocks = blocks;
    out->rows = std::min(rows, 16);
    out->row_tiles = (rows + 15) / 16;
    return Choose(rows, raw, [&]<class C>() { return Divide<C>(shared, major, out); });
  }

  static Status Launch(const AttendParams& p, const AttendShape& shape, void* stream) {
    return Choose(shape.rows, p.raw.data != nullptr, [&]<class C>() { return LaunchRows<C>(p, shape, stream); });
  }

 private:
  // Up to 4, 8 and 16 query rows; the two bytes of a weight take the columns of two rows.
  using Halves = std::conditional_t<ByteLoader<VL>, AsHalves<VL>, VL>;
  template <bool kRaw, class F>
  static Status ChooseRows(int rows, F f) {
    if (rows <= 4) return f.template operator()<AttendConfig<KL, VL, d, 1, kRaw>>();
    if (rows <= 8) return f.template operator()<AttendConfig<KL, Halves, d, 1, kRaw>>();
    return f.template operator()<AttendConfig<KL, Halves, d, 2, kRaw>>();
  }
  template <class F>
  static Status Choose(int rows, bool raw, F f) {
    if constexpr (KL::kScaled && VL::kScaled) {
      if (raw) return ChooseRows<true>(rows, f);
    }
    if (raw) return Unsupported("raw tokens beside raw pages: put all tokens into the pages");
    return ChooseRows<false>(rows, f);
  }

  static constexpr int kStageBytes = 208 << 10;  // more in flight gains nothing

  template <class C>
  static Status Divide(int shared, int major, AttendShape* out) {
    const int slots = out->slots > 0 ? out->slots : 2;
    int warps = out->warps > 0 ? out->warps : C::kWorkers;
    while (warps > 0 && typename C::Shared(warps, slots, out->rows).bytes > shared) --warps;
    if (warps == 0) {
      return Unsupported("a thread block of this device has " + std::to_string(shared) +
                         " bytes of shared memory, attention over this format needs " +
                         std::to_string(typename C::Shared(1, slots, out->rows).bytes) + ": take fewer bits a value");
    }
    int most = slots;
    if (out->slots == 0 && major >= 9) {
      while (most < 4 && warps * (most + 1) * C::Source::kTileBytes <= kStageBytes &&
             typename C::Shared(warps, most + 1, out->rows).bytes <= shared) {
        ++most;
      }
    }
    out->warps = warps;
    out->slots = most;
    out->shared_bytes = typename C::Shared(warps, most, out->rows).bytes;
    out->tile_tokens = C::kTileTokens;
    return {};
  }

  template <class C>
  static Status LaunchRows(const AttendParams& p, const AttendShape& shape, void* stream) {
    const auto kernel = AttendKernelBody<KL, typename C::Values, d, C::kRowTileCount, C::kHasRaw>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (error != cudaSuccess) return Internal(std::string("attend: ") + cudaGetErrorString(error));
    const WorkspaceLayout layout(shape.blocks, p.batch, p.pool.kv_heads, shape.row_tiles, shape.rows, d, C::kHasRaw);
    AttendShape own = shape;
    own.softcap = p.softcap * kLog2E;
    own.two_over_softcap = p.softcap > 0 ? 2 * kLog2E / own.softcap : 0.0f;
    const dim3 grid(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.row_tiles));
    kernel<<<grid, static_cast<unsigned>(C::kThreads), static_cast<size_t>(shape.shared_bytes),
             static_cast<cudaStream_t>(stream)>>>(p, own, layout.At(p.workspace));
    return LaunchStatus("attend");
  }
};

template <class KL, class VL, int d>
constexpr AttendKernel MakeAttendKernel() {
  using Instance = AttendInstance<KL, VL, d>;
  return {KL::kBits, VL::kBits, d, KL::kBf16, ByteLoader<KL>, ByteLoader<VL>, Instance::Shape, Instance::Launch};
}

}  // namespace tersekv::cuda
