/* SPDX-License-Identifier: Apache-2.0
 * The CUDA part of the C API from C11, as an engine calls it: what needs no GPU. Returns 0, or the line that failed. */
#include <string.h>

#include "tersekv/cuda_api.h"

int tersekv_c11_cuda(void);

#define REQUIRE(condition) \
  if (!(condition)) return __LINE__

int tersekv_c11_cuda(void) {
  tersekv_cuda_format format;
  tersekv_cuda_pool pool;
  tersekv_cuda_tokens tokens;
  tersekv_cuda_attention attention;
  size_t bytes = 0;
  REQUIRE(tersekv_cuda_format_of("k4v3+sink=0+win=0", 128, &format) == TERSEKV_OK);
  REQUIRE(format.k_bits == 4 && format.v_bits == 3 && format.head_dim == 128 && format.page_tokens == 64);
  REQUIRE(format.k_norm == TERSEKV_NORM_UNBIASED && format.v_norm == TERSEKV_NORM_LS);
  /* 64 tokens of 8 heads: 64 + 48 bytes of codes, two bf16 scales */
  REQUIRE(tersekv_cuda_page_bytes(&format, 8) == 64u * 8u * (64u + 48u + 4u));
  memset(&pool, 0, sizeof pool);
  pool.struct_size = sizeof pool;
  pool.format = &format;
  pool.kv_heads = 8;
  memset(&tokens, 0, sizeof tokens);
  tokens.struct_size = sizeof tokens;
  tokens.pool = &pool;
  memset(&attention, 0, sizeof attention);
  attention.struct_size = sizeof attention;
  attention.pool = &pool;
  attention.batch = 1;
  attention.heads = 32;
  attention.q_len = 1;
  attention.scale = 1;
  if (*tersekv_cuda_kernels() != '\0') return 0; /* the rest needs a build without CUDA */
  REQUIRE(tersekv_cuda_append(&tokens, 0) == TERSEKV_UNSUPPORTED);
  REQUIRE(strstr(tersekv_last_error(), "TERSEKV_CUDA") != NULL);
  REQUIRE(tersekv_cuda_decompress(&tokens, 0) == TERSEKV_UNSUPPORTED);
  REQUIRE(tersekv_cuda_workspace_bytes(&attention, &bytes) == TERSEKV_UNSUPPORTED);
  REQUIRE(tersekv_cuda_plan(&attention, 0) == TERSEKV_UNSUPPORTED);
  REQUIRE(tersekv_cuda_attend(&attention, 0) == TERSEKV_UNSUPPORTED);
  return 0;
}
