// SPDX-License-Identifier: Apache-2.0
// Checks of what is asked of latents.
#include <fmt/format.h>

#include <algorithm>

#include "src/base/check.h"
#include "src/cuda/latent_launch.h"

namespace tersekv::cuda {
namespace {

Status CheckPool(const LatentPool& pool) {
  TERSEKV_RETURN_IF_ERROR(CheckLatentFormat(pool));
  for (const float* stats : {pool.stats.mean, pool.stats.scale, pool.stats.inv_scale}) {
    if (reinterpret_cast<uintptr_t>(stats) % 16 != 0) return InvalidArgument("statistics must be aligned to 16 bytes");
  }
  if (pool.data == nullptr || reinterpret_cast<uintptr_t>(pool.data) % 16 != 0) {
    return InvalidArgument("the pool's memory must be there and aligned to 16 bytes");
  }
  return {};
}

Status CheckRows(const Rows& rows, const char* name) {
  const int64_t per16 = rows.type == Type::kF32 ? 4 : 8;
  if (rows.data == nullptr || reinterpret_cast<uintptr_t>(rows.data) % 16 != 0 || rows.batch_stride % per16 != 0 ||
      rows.token_stride % per16 != 0 || rows.head_stride % per16 != 0) {
    return InvalidArgument(fmt::format("{}: rows must be there, and start and strides be multiples of 16 bytes", name));
  }
  return {};
}

Status Choose(const LatentAttendParams& p, LatentShape* shape) {
  TERSEKV_RETURN_IF_ERROR(CheckLatentFormat(p.pool));
  if (p.batch < 0 || p.heads <= 0 || p.q_len < 1) {
    return InvalidArgument(
        fmt::format("latents: {} sequences of {} new tokens and {} heads", p.batch, p.q_len, p.heads));
  }
  int blocks = 0;
  TERSEKV_RETURN_IF_ERROR(DeviceBlocks(&blocks));
  shape->row_blocks = (p.heads * p.q_len + kLatentRows - 1) / kLatentRows;
  shape->splits = std::clamp(blocks / std::max(1, p.batch * shape->row_blocks), 1, 32);
  return {};
}

}  // namespace

Status LatentAppend(const LatentAppendParams& p, void* stream) {
  TERSEKV_RETURN_IF_ERROR(CheckPool(p.pool));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.latent, "latent"));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.rotary, "rotary"));
  if (p.tokens < 0 || (p.tokens > 0 && p.slots == nullptr)) return InvalidArgument("append: tokens without slots");
  return p.tokens == 0 ? Status() : LaunchLatentAppend(p, stream);
}

Status LatentWorkspaceBytes(const LatentAttendParams& p, size_t* bytes) {
  LatentShape shape;
  TERSEKV_RETURN_IF_ERROR(Choose(p, &shape));
  *bytes = LatentParts(shape, p.batch) * (kLatent + 2) * sizeof(float);
  return {};
}

Status LatentAttend(const LatentAttendParams& p, void* stream) {
  LatentShape shape;
  TERSEKV_RETURN_IF_ERROR(Choose(p, &shape));
  TERSEKV_RETURN_IF_ERROR(CheckPool(p.pool));
  if (p.batch == 0) return {};
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.q, "q"));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.out, "out"));
  if (p.lengths == nullptr || p.block_table == nullptr) {
    return InvalidArgument("lengths and block_table must be there: they are read on the device");
  }
  if (p.workspace == nullptr || reinterpret_cast<uintptr_t>(p.workspace) % 16 != 0) {
    return InvalidArgument("the workspace must be there (LatentWorkspaceBytes says how large) and aligned to 16 bytes");
  }
  return LaunchLatentAttend(p, shape, stream);
}

}  // namespace tersekv::cuda
