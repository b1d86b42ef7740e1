// SPDX-License-Identifier: Apache-2.0
// Which pages there are, with and without CUDA.
#include <fmt/format.h>

#include "src/cuda/latent.h"

namespace tersekv::cuda {

Status CheckFormat(const Pool& pool) {
  const BlockLayout& b = pool.block;
  if (b.d != 64 && b.d != 128 && b.d != 192 && b.d != 256) {
    return Unsupported(fmt::format("head_dim {}: CUDA kernels do 64, 128, 192 and 256", b.d));
  }
  if (!BitsSupported(b.k_bits) || !BitsSupported(b.v_bits) || (b.k_bits == kRawBits) != (b.v_bits == kRawBits)) {
    return Unsupported(fmt::format(
        "{} and {} bits: CUDA pages hold 2 to 6 or 8 bits on either side, or 16 (raw) on both", b.k_bits, b.v_bits));
  }
  if (pool.page_tokens < 16 || (pool.page_tokens & (pool.page_tokens - 1)) != 0) {
    return Unsupported(fmt::format("{} tokens a page: a power of two, at least 16", pool.page_tokens));
  }
  if (pool.kv_heads <= 0) return InvalidArgument(fmt::format("{} KV heads", pool.kv_heads));
  return {};
}

Status CheckLatentFormat(const LatentPool& pool) {
  if (!BitsSupported(pool.block.bits) || pool.block.bits == kRawBits) {
    return Unsupported(fmt::format("{} bits: CUDA pages of latents hold 2 to 6 or 8", pool.block.bits));
  }
  if (pool.page_tokens < 16 || (pool.page_tokens & (pool.page_tokens - 1)) != 0) {
    return Unsupported(fmt::format("{} tokens a page: a power of two, at least 16", pool.page_tokens));
  }
  return {};
}

}  // namespace tersekv::cuda
