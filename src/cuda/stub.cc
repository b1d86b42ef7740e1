// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: every call says so.
#include "src/cuda/latent.h"

namespace tersekv::cuda {
namespace {

Status NoCuda() { return Unsupported("this build has no CUDA kernels: configure with -DTERSEKV_CUDA=ON"); }

}  // namespace

Status Append(const AppendParams&, void*) { return NoCuda(); }
Status Decompress(const DecompressParams&, void*) { return NoCuda(); }
Status TransformQueries(const TransformParams&, void*) { return NoCuda(); }
Status Merge(const MergeParams&, void*) { return NoCuda(); }
Status WorkspaceBytes(const AttendParams&, size_t*) { return NoCuda(); }
Status PlanAttend(const AttendParams&, void*) { return NoCuda(); }
Status Attend(const AttendParams&, void*) { return NoCuda(); }
Status Describe(const AttendParams&, std::string*) { return NoCuda(); }
Status LatentAppend(const LatentAppendParams&, void*) { return NoCuda(); }
Status LatentWorkspaceBytes(const LatentAttendParams&, size_t*) { return NoCuda(); }
Status LatentAttend(const LatentAttendParams&, void*) { return NoCuda(); }
const char* KernelList() { return ""; }

}  // namespace tersekv::cuda
