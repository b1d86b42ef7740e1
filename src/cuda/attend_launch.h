// SPDX-License-Identifier: Apache-2.0
// Which attention kernels a build holds, and how they are launched. Each instance is one source file made from
// attend_instance.cu.in.
#pragma once

#include "src/cuda/launch.h"
#include "src/cuda/plan.cuh"

namespace tersekv::cuda {

// How a launch divides its thread block.
struct AttendShape {
  int row_tiles, rows;  // blocks of query rows (group * q_len) of a KV head; rows of the largest
  int warps, slots;     // warps that multiply; tiles of shared memory a warp
  int blocks;           // multiprocessors
  int shared_bytes;
  int tile_tokens;
  float softcap, two_over_softcap;  // in base 2; the kernel divides nothing
};

struct AttendKernel {
  int k_bits, v_bits, d;
  bool bf16;
  bool k_bytes, v_bytes;  // integer products; for V up to 4 query rows
  // Shape for so many query rows a KV head, with raw tokens beside the packed ones or without. out->warps and
  // out->slots: what is asked for, 0 = the best known. kUnsupported when the device's shared memory is too small.
  Status (*shape)(int rows, bool raw, AttendShape* out);
  Status (*launch)(const AttendParams& p, const AttendShape& shape, void* stream);
};

// Null when the build has none; `bf16` matters for raw types only.
const AttendKernel* FindAttendKernel(int k_bits, int v_bits, int d, bool bf16);

Status LaunchPlan(const PlanShape& shape, const int32_t* lengths, const Workspace& workspace, void* stream);

}  // namespace tersekv::cuda
