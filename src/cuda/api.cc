// SPDX-License-Identifier: Apache-2.0
// Checks of parameters and the choice of kernels. A combination that no kernel does is refused here, by name.
#include <fmt/format.h>

#include <string>

#include "src/base/check.h"
#include "src/cuda/attend_launch.h"

namespace tersekv::cuda {
namespace {

Status CheckPool(const Pool& pool) {
  TERSEKV_RETURN_IF_ERROR(CheckFormat(pool));
  for (const float* stats :
       {pool.k.mean, pool.k.scale, pool.k.inv_scale, pool.v.mean, pool.v.scale, pool.v.inv_scale}) {
    if (reinterpret_cast<uintptr_t>(stats) % 16 != 0) return InvalidArgument("statistics must be aligned to 16 bytes");
  }
  if (pool.data == nullptr || reinterpret_cast<uintptr_t>(pool.data) % 16 != 0) {
    return InvalidArgument("the pool's memory must be there and aligned to 16 bytes");
  }
  return {};
}

Status CheckRows(const Rows& rows, int width, const char* name) {
  const int64_t per16 = rows.type == Type::kF32 ? 4 : 8;
  const uintptr_t address = reinterpret_cast<uintptr_t>(rows.data);
  if (rows.data == nullptr || address % 16 != 0 || rows.batch_stride % per16 != 0 || rows.token_stride % per16 != 0 ||
      rows.head_stride % per16 != 0) {
    return InvalidArgument(fmt::format(
        "{}: rows of {} values must be there, and start and strides be multiples of 16 bytes", name, width));
  }
  return {};
}

template <class Params>
Status CheckHeads(const Params& p) {
  if (p.batch < 0 || p.q_len < 0)
    return InvalidArgument(fmt::format("{} sequences of {} new tokens", p.batch, p.q_len));
  if (p.heads <= 0 || p.heads % p.pool.kv_heads != 0) {
    return InvalidArgument(fmt::format("{} heads are no multiple of {} KV heads", p.heads, p.pool.kv_heads));
  }
  return {};
}

Status CheckRaw(const AttendParams& p) {
  const RawTokens& raw = p.raw;
  if (reinterpret_cast<uintptr_t>(raw.data) % 16 != 0) {
    return InvalidArgument("the raw pool's memory must be aligned to 16 bytes");
  }
  if (raw.page_tokens < 16 || (raw.page_tokens & (raw.page_tokens - 1)) != 0) {
    return Unsupported(fmt::format("{} tokens a raw page: a power of two, at least 16", raw.page_tokens));
  }
  if (raw.sink < 0 || raw.window < 0 || raw.packed_from < 0) {
    return InvalidArgument("raw tokens: sink, window and packed_from must not be negative");
  }
  if (p.pool.v.scale != nullptr && p.pool.v.inv_scale == nullptr) {
    return InvalidArgument("raw tokens beside scaled values: give v_inv_scale, too");
  }
  return {};
}

Status CheckQueries(const AttendParams& p) {
  if (p.batch < 0 || p.q_len < 1 || p.q_len > 16) {
    return Unsupported(fmt::format("{} sequences of {} new tokens: decode does 1 to 16 new tokens", p.batch, p.q_len));
  }
  TERSEKV_RETURN_IF_ERROR(CheckHeads(p));
  if (p.raw.data != nullptr) TERSEKV_RETURN_IF_ERROR(CheckRaw(p));
  if (p.window < 0 || p.softcap < 0) return InvalidArgument("window and softcap must not be negative");
  return {};
}

// The kernel and how it is divided.
Status Choose(const AttendParams& p, const AttendKernel** kernel, AttendShape* shape) {
  TERSEKV_RETURN_IF_ERROR(CheckFormat(p.pool));
  TERSEKV_RETURN_IF_ERROR(CheckQueries(p));
  const BlockLayout& b = p.pool.block;
  *kernel = FindAttendKernel(b.k_bits, b.v_bits, b.d, p.pool.bf16);
  if (*kernel == nullptr) {
    return Unsupported(
        fmt::format("no attention kernel for {} and {} bits at head_dim {}; this build has {} "
                    "(TERSEKV_CUDA_SET=full builds all)",
                    b.k_bits, b.v_bits, b.d, KernelList()));
  }
  *shape = AttendShape{};
  return (*kernel)->shape(p.heads / p.pool.kv_heads * p.q_len, p.raw.data != nullptr, shape);
}

Status CheckMemory(const AttendParams& p) {
  TERSEKV_RETURN_IF_ERROR(CheckPool(p.pool));
  if (p.batch > 0 && (p.lengths == nullptr || p.block_table == nullptr)) {
    return InvalidArgument("lengths and block_table must be there: they are read on the device");
  }
  if (p.raw.data != nullptr && p.batch > 0 && p.raw.table == nullptr) {
    return InvalidArgument("the raw tokens' table must be there: it is read on the device");
  }
  if (p.workspace == nullptr || reinterpret_cast<uintptr_t>(p.workspace) % 16 != 0) {
    return InvalidArgument("the workspace must be there (WorkspaceBytes says how large) and aligned to 16 bytes");
  }
  return {};
}

WorkspaceLayout LayoutOf(const AttendParams& p, const AttendShape& s) {
  return WorkspaceLayout(s.blocks, p.batch, p.pool.kv_heads, s.row_tiles, s.rows, p.pool.block.d,
                         p.raw.data != nullptr);
}

}  // namespace

Status Append(const AppendParams& p, void* stream) {
  TERSEKV_RETURN_IF_ERROR(CheckPool(p.pool));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.k, p.pool.block.d, "k"));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.v, p.pool.block.d, "v"));
  if (p.tokens < 0 || (p.tokens > 0 && p.slots == nullptr)) return InvalidArgument("append: tokens without slots");
  return p.tokens == 0 ? Status() : LaunchAppend(p, stream);
}

Status Decompress(const DecompressParams& p, void* stream) {
  TERSEKV_RETURN_IF_ERROR(CheckPool(p.pool));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.k, p.pool.block.d, "k"));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.v, p.pool.block.d, "v"));
  if (p.tokens < 0 || p.batch < 0) return InvalidArgument("decompress: tokens and batch must not be negative");
  if (p.tokens == 0 || (p.slots == nullptr && p.batch == 0)) return {};
  if (p.slots == nullptr) {
    if (p.lengths == nullptr || p.block_table == nullptr) {
      return InvalidArgument("decompress: slots, or lengths and a block_table, must be there");
    }
    if (p.first < 0 || p.first % kBlockTokens != 0) {
      return InvalidArgument(
          fmt::format("decompress: a range starts at a multiple of {} tokens, not at {}", kBlockTokens, p.first));
    }
  }
  if (p.transformed && p.slots != nullptr) {
    return Unsupported("decompress: rows of transformed space come from ranges of a block table, not from slots");
  }
  return p.transformed && p.pool.block.scaled() ? LaunchTransformed(p, stream) : LaunchDecompress(p, stream);
}

Status TransformQueries(const TransformParams& p, void* stream) {
  TERSEKV_RETURN_IF_ERROR(CheckFormat(p.pool));
  TERSEKV_RETURN_IF_ERROR(CheckHeads(p));
  if (p.batch == 0 || p.q_len == 0) return {};
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.q, p.pool.block.d, "q"));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.out, p.pool.block.d, "out"));
  return LaunchTransform(p, stream);
}

Status Merge(const MergeParams& p, void* stream) {
  TERSEKV_RETURN_IF_ERROR(CheckFormat(p.pool));
  TERSEKV_RETURN_IF_ERROR(CheckHeads(p));
  if (p.count < 0 || p.count > MergeParams::kMostParts) {
    return InvalidArgument(
        fmt::format("merge: {} parts; 0 to {} at a time, more by way of a state", p.count, MergeParams::kMostParts));
  }
  if (p.batch == 0 || p.q_len == 0) return {};
  const int d = p.pool.block.d;
  for (int i = 0; i < p.count; ++i) {
    Rows part = p.part;
    part.data = const_cast<void*>(p.parts[i].rows);
    TERSEKV_RETURN_IF_ERROR(CheckRows(part, d, "parts"));
    if (p.parts[i].lse == nullptr) return InvalidArgument(fmt::format("merge: part {} has no lse", i));
  }
  if ((p.resume || p.out.data == nullptr) &&
      (p.state == nullptr || p.state_lse == nullptr || reinterpret_cast<uintptr_t>(p.state) % 16 != 0)) {
    return InvalidArgument("merge: a state to go on with, or to write without out, must be there, aligned to 16 bytes");
  }
  if (p.own.data != nullptr) {
    if (p.out.data == nullptr) return InvalidArgument("merge: a part of its own is joined with out, not with a state");
    TERSEKV_RETURN_IF_ERROR(CheckRows(p.own, d, "own"));
    if (p.own_lse == nullptr) return InvalidArgument("merge: a part of its own without lse");
  }
  if (p.out.data != nullptr) TERSEKV_RETURN_IF_ERROR(CheckRows(p.out, d, "out"));
  return LaunchMerge(p, stream);
}

Status WorkspaceBytes(const AttendParams& p, size_t* bytes) {
  const AttendKernel* kernel = nullptr;
  AttendShape shape;
  TERSEKV_RETURN_IF_ERROR(Choose(p, &kernel, &shape));
  *bytes = LayoutOf(p, shape).bytes;
  return {};
}

Status Describe(const AttendParams& p, std::string* out) {
  const AttendKernel* kernel = nullptr;
  AttendShape shape;
  TERSEKV_RETURN_IF_ERROR(Choose(p, &kernel, &shape));
  const BlockLayout& b = p.pool.block;
  const auto side = [&](int bits, bool bytes) {
    return bits == kRawBits ? std::string("raw 16-bit values")
                            : fmt::format("{}-bit levels as {}", bits, bytes ? "bytes of integer products" : "f16");
  };
  *out = fmt::format(
      "attention of {} and {} bits at head_dim {}, in this build (TERSEKV_CUDA_SET); K: {}, V: {}; {} query rows a KV "
      "head in {} block(s), {} warps of {} tiles of {} tokens on {} multiprocessors",
      b.k_bits, b.v_bits, b.d, side(b.k_bits, kernel->k_bytes), side(b.v_bits, kernel->v_bytes && shape.rows <= 4),
      p.heads / p.pool.kv_heads * p.q_len, shape.row_tiles, shape.warps, shape.slots, shape.tile_tokens, shape.blocks);
  return {};
}

Status PlanAttend(const AttendParams& p, void* stream) {
  const AttendKernel* kernel = nullptr;
  AttendShape shape;
  TERSEKV_RETURN_IF_ERROR(Choose(p, &kernel, &shape));
  TERSEKV_RETURN_IF_ERROR(CheckMemory(p));
  if (p.batch == 0) return {};
  const PlanShape plan{
      p.batch, p.pool.kv_heads, p.q_len, p.window, shape.tile_tokens, shape.blocks, shape.row_tiles * shape.rows,
      p.raw};
  return LaunchPlan(plan, p.lengths, LayoutOf(p, shape).At(p.workspace), stream);
}

Status Attend(const AttendParams& p, void* stream) {
  const AttendKernel* kernel = nullptr;
  AttendShape shape;
  TERSEKV_RETURN_IF_ERROR(Choose(p, &kernel, &shape));
  TERSEKV_RETURN_IF_ERROR(CheckMemory(p));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.q, p.pool.block.d, "q"));
  TERSEKV_RETURN_IF_ERROR(CheckRows(p.out, p.pool.block.d, "out"));
  return p.batch == 0 ? Status() : kernel->launch(p, shape, stream);
}

}  // namespace tersekv::cuda
