/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA kernels from C: append rows to packed pages, attend over them, decompress them. For engines that own the memory,
 * the page ids and the stream (vLLM, SGLang, PyTorch).
 *
 * Every pointer but `out` parameters and names is device memory of the caller's. Launches allocate nothing and wait for
 * nothing, so that they can be captured in a graph; lengths, slots and page ids are read on the device when the launch
 * runs. Shapes and strides are fixed when it is captured. A stream is the CUstream's value as an integer, 0 the default
 * one; the calling thread's current device is used. Functions keep no state and may be called from any thread, but two
 * launches at once must not share a workspace, nor write the same tokens.
 *
 * In a build without CUDA (tersekv_cuda_kernels() is "") launches answer TERSEKV_UNSUPPORTED; formats and sizes work.
 * What no kernel does is refused by name before anything is launched (tersekv_last_error).
 */
#ifndef TERSEKV_CUDA_API_H_
#define TERSEKV_CUDA_API_H_

#include "tersekv/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tersekv_dtype { TERSEKV_F32 = 0, TERSEKV_F16 = 1, TERSEKV_BF16 = 2 } tersekv_dtype;
typedef enum tersekv_norm {
  TERSEKV_NORM_NONE = 0,
  TERSEKV_NORM_MATCH = 1,
  TERSEKV_NORM_LS = 2,
  TERSEKV_NORM_UNBIASED = 3
} tersekv_norm;

/* How a pool's pages are made; fill it with tersekv_cuda_format_of. */
typedef struct tersekv_cuda_format {
  uint32_t struct_size; /* sizeof(tersekv_cuda_format) */
  int32_t head_dim;
  int32_t k_bits, v_bits; /* 16 on both: raw values */
  int32_t raw_dtype;      /* of raw values: TERSEKV_F16 or TERSEKV_BF16 */
  int32_t k_norm, v_norm; /* tersekv_norm */
  int32_t page_tokens;    /* a power of two, at least 16 */
  uint64_t seed;          /* of the signs */
} tersekv_cuda_format;

/* `spec` names widths, norms, page and seed, e.g. "k4v4+sink=0+win=0". Refused: what CUDA pages do not hold, raw sinks
   and windows among it: these lie in a pool of "bf16" or "f16" beside it (tersekv_cuda_raw). */
TERSEKV_API tersekv_status tersekv_cuda_format_of(const char* spec, int32_t head_dim, tersekv_cuda_format* out);
/* Bytes of one page of all KV heads of a layer; 0 when the format is none. */
TERSEKV_API size_t tersekv_cuda_page_bytes(const tersekv_cuda_format* format, int32_t kv_heads);
/* Where a page keeps what, for programs that take pages apart. A page is [kv_heads][page_tokens / 16] blocks of
   block_bytes; a block holds 16 tokens of one KV head: codes of K, codes of V, 16 scales (bf16) of K, 16 of V (raw
   pages have none). Offsets are in bytes within a block. */
typedef struct tersekv_cuda_block {
  uint32_t struct_size; /* sizeof(tersekv_cuda_block) */
  int32_t block_bytes;
  int32_t k_codes, v_codes, k_scales, v_scales;
} tersekv_cuda_block;
TERSEKV_API tersekv_status tersekv_cuda_block_of(const tersekv_cuda_format* format, tersekv_cuda_block* out);
/* places[(token * head_dim + channel) * bits + bit]: where, in bits from the start of a side's codes (0: K, 1: V), bit
   `bit` of the stored code of a channel of one of the 16 tokens lies. `count`: 16 * head_dim * bits, of that side. */
TERSEKV_API tersekv_status tersekv_cuda_bit_places(const tersekv_cuda_format* format, int32_t side, int32_t* places,
                                                   size_t count);
/* What pages store of a canonical code (docs/formats.md) of `bits` bits, 2 to 6 or 8; -1 when there is no such code. */
TERSEKV_API int32_t tersekv_cuda_stored_code(int32_t bits, int32_t code);

/* The packed history of one layer. */
typedef struct tersekv_cuda_pool {
  uint32_t struct_size; /* sizeof(tersekv_cuda_pool) */
  const tersekv_cuda_format* format;
  void* pages; /* [pages][page_bytes], aligned to 16 bytes */
  int32_t kv_heads;
  int32_t layer;        /* ordinal; picks the signs */
  const float* k_mean;  /* each [kv_heads, head_dim] or NULL, aligned to 16 bytes */
  const float* k_scale; /* a key is coded as (key - mean) * inv_scale */
  const float* k_inv_scale;
  const float* v_mean;
  const float* v_scale;
  const float* v_inv_scale;
} tersekv_cuda_pool;

/* Value c of head h of token t of sequence b lies at data + b*batch_stride + t*token_stride + h*head_stride + c values.
   Strides are in bytes; starts and strides are multiples of 16. */
typedef struct tersekv_cuda_rows {
  void* data;
  int32_t dtype; /* tersekv_dtype */
  int64_t batch_stride, token_stride, head_stride;
} tersekv_cuda_rows;

/* Rows of `tokens` tokens into, or out of, their slots. */
typedef struct tersekv_cuda_tokens {
  uint32_t struct_size; /* sizeof(tersekv_cuda_tokens) */
  const tersekv_cuda_pool* pool;
  tersekv_cuda_rows k, v; /* [tokens, kv_heads, head_dim]; batch_stride is not used */
  const int64_t* slots;   /* [tokens] page * page_tokens + place, each once; below 0: left out */
  int32_t tokens;
  int32_t* not_finite; /* append sets it to 1 when a row is not finite (it then decodes to its mean); or NULL */
} tersekv_cuda_tokens;

/* Encodes in one launch; the bytes are those of the CPU's encoder. */
TERSEKV_API tersekv_status tersekv_cuda_append(const tersekv_cuda_tokens* tokens, uint64_t stream);
/* Decodes, bit-equal to the CPU's decoder when rows are fp32. */
TERSEKV_API tersekv_status tersekv_cuda_decompress(const tersekv_cuda_tokens* tokens, uint64_t stream);

/* Raw rows beside packed pages: sink= and win= of a spec. Tokens of a sequence are counted from 0, the oldest;
   `lengths` are of all of them.

   Token j's raw rows lie at slot table[j / page_tokens] * page_tokens + j % page_tokens of the raw pool. Its packed
   ones (j >= sink) are number j - sink of the packed pages: block_table[(j - sink) / page_tokens] and so on.

   The query of token i sees packed [sink, e) and raw [0, sink) and [e, i], where e is sink if i + 1 < packed_from, else
   max(sink, i + 1 - window, begin[b]). So before a launch of q_len queries there must be raw rows of the sinks and of
   all tokens from the oldest query's e on, and packed rows up to the newest query's e.

   Nothing else is looked at, and its pages may be reused: a table that never changes, over pages for the sinks and a
   ring of ceil((window + q_len - 1) / page_tokens) + 1 pages (more while packed_from keeps more raw), serves a sequence
   of any length.

   What leaves the window is packed by tersekv_cuda_decompress from the raw pool into rows of its dtype, which is exact,
   and tersekv_cuda_append into the packed pool. Both leave out slots below 0.

   Raw rows are f16 or bf16 as the raw pool's format says, whatever q's dtype is (q is rounded to it). When the packed
   pool has v_scale, it must have v_inv_scale. */
typedef struct tersekv_cuda_raw {
  uint32_t struct_size;          /* sizeof(tersekv_cuda_raw) */
  int32_t sink, window;          /* window: tokens up to a query's own, it included */
  int32_t packed_from;           /* 0, or sink + 128: nothing is packed for queries with fewer tokens up to them, since
                                    statistics come from those (mean=stats without a profile) */
  const tersekv_cuda_pool* pool; /* of "f16" or "bf16"; head_dim and kv_heads as packed. Pages of 16 waste least */
  const int32_t* table;          /* [batch, table_stride] page ids, read on the device */
  int64_t table_stride;          /* entries */
  const int32_t* begin; /* [batch] raw rows behind the sinks are there from this token on, read on the device (a
                           sequence that was cut back into what had been packed); or NULL: 0 */
} tersekv_cuda_raw;

typedef struct tersekv_cuda_attention {
  uint32_t struct_size; /* sizeof(tersekv_cuda_attention) */
  const tersekv_cuda_pool* pool;
  tersekv_cuda_rows q, out;   /* [batch, q_len, heads, head_dim]: the newest q_len tokens of each sequence */
  float* lse;                 /* [batch, q_len, heads] natural logarithm of the softmax's sum; or NULL */
  const int32_t* lengths;     /* [batch] tokens of each sequence, those of q included; 0 is allowed */
  const int32_t* block_table; /* [batch, table_stride] page ids */
  int64_t table_stride;       /* entries */
  int32_t batch, heads, q_len;
  float scale;               /* of q.k */
  int32_t window;            /* 0 = all; a query at p sees p - window < pos <= p */
  float softcap;             /* 0 = off */
  const float* alibi_slopes; /* [heads] or NULL */
  const float* sinks;        /* [heads] learned sink logits, or NULL */
  int32_t transformed_out;   /* 1: out stays in the values' transformed space, without their scale and mean */
  void* workspace;           /* tersekv_cuda_workspace_bytes, aligned to 16 bytes */
  /* Since here programs built against an older header end: their struct_size is accepted, what follows counts as 0. */
  float* l_packed; /* [batch, q_len, heads] what part of the softmax's sum (exp(lse)) packed tokens have, 0 to 1, for
                      who adds the values' mean to a transformed out: mean * l_packed; or NULL */
  /* Raw tokens of each sequence, attended in the same launch: the first `sink` and the newest (sink= and win= of a
     spec). NULL: none, every token is packed. */
  const tersekv_cuda_raw* raw;
} tersekv_cuda_attention;

/* Depends on pool, batch, heads, q_len and whether there is `raw`; pointers may be NULL but for pool.pages (and
   raw->pool->pages). */
TERSEKV_API tersekv_status tersekv_cuda_workspace_bytes(const tersekv_cuda_attention* attention, size_t* out);
/* Cuts a step's work by its lengths and window, once for all layers of the same shape. Deterministic. */
TERSEKV_API tersekv_status tersekv_cuda_plan(const tersekv_cuda_attention* attention, uint64_t stream);
/* After tersekv_cuda_plan on the same workspace and lengths. The same lengths give the same bits. */
TERSEKV_API tersekv_status tersekv_cuda_attend(const tersekv_cuda_attention* attention, uint64_t stream);

/* The kernel that attends this shape on the current device and why, as text of at most `size` bytes; else a status
   whose message says why none does. */
TERSEKV_API tersekv_status tersekv_cuda_describe(const tersekv_cuda_format* format, int32_t heads, int32_t kv_heads,
                                                 int32_t q_len, char* out, size_t size);
/* Attention kernels of this build, "k4v4-128 k3v3-128 ...", by widths and head_dim; "" without CUDA. */
TERSEKV_API const char* tersekv_cuda_kernels(void);

/* Prefill over packed history with attention of the engine's own (cuDNN, FlashAttention), which reads dense rows:
     tersekv_cuda_transform_queries    once
     for each range of the history:    tersekv_cuda_decompress_range into a scratch of rows, transformed = 1
                                       the engine's attention over it, without mask, with lse
     the new tokens among themselves:  the engine's attention over their own rows, causal, with lse
     tersekv_cuda_merge                joins the parts, now and then into a state, at the end into the output
   In transformed space rows cost no rotation; queries and the output are rotated once instead. */

/* Rows of tokens first .. first + tokens - 1 of each sequence, wherever its pages are. */
typedef struct tersekv_cuda_range {
  uint32_t struct_size; /* sizeof(tersekv_cuda_range) */
  const tersekv_cuda_pool* pool;
  tersekv_cuda_rows k, v;     /* [batch, tokens, kv_heads, head_dim], written */
  const int32_t* lengths;     /* [batch] rows of tokens from there on become zeros; mask them */
  const int32_t* block_table; /* [batch, table_stride] page ids */
  int64_t table_stride;       /* entries */
  int32_t batch;
  int32_t first; /* a multiple of 16 */
  int32_t tokens;
  int32_t transformed; /* 0: as tersekv_cuda_decompress; 1: scale * level, without rotation, channel scale and mean, and
                          V's channels in an order of its own, which tersekv_cuda_merge undoes */
} tersekv_cuda_range;
TERSEKV_API tersekv_status tersekv_cuda_decompress_range(const tersekv_cuda_range* range, uint64_t stream);

/* Queries for transformed keys. */
typedef struct tersekv_cuda_queries {
  uint32_t struct_size; /* sizeof(tersekv_cuda_queries) */
  const tersekv_cuda_pool* pool;
  tersekv_cuda_rows q, out; /* [batch, q_len, heads, head_dim]; out may be q */
  float* bias;              /* [batch, heads, q_len] scale * <q, mean>, for tersekv_cuda_merge; or NULL */
  int32_t batch, heads, q_len;
  float scale; /* of q.k */
} tersekv_cuda_queries;
TERSEKV_API tersekv_status tersekv_cuda_transform_queries(const tersekv_cuda_queries* queries, uint64_t stream);

/* Results of parts of the history, each attended in transformed space. A lse is a natural logarithm of a softmax's sum,
   -INFINITY where nothing was seen; every array of them is [batch, heads, q_len]. */
typedef struct tersekv_cuda_parts {
  uint32_t struct_size; /* sizeof(tersekv_cuda_parts) */
  const tersekv_cuda_pool* pool;
  int32_t batch, heads, q_len;
  int32_t count;                /* of parts, 0 to 16; more by way of a state */
  const void* const* rows;      /* host memory, [count] starts of rows [batch, q_len, heads, head_dim] */
  const float* const* rows_lse; /* host memory, [count] starts of lse */
  tersekv_cuda_rows part;       /* dtype and strides of all parts' rows; data is not used */
  int32_t resume;               /* 1: the state is a part, too */
  float* state;                 /* [batch, q_len, heads, head_dim], aligned to 16 bytes; written when out has no data */
  float* state_lse;
  const float* bias;     /* of tersekv_cuda_transform_queries, or NULL when keys have no mean */
  tersekv_cuda_rows own; /* [batch, q_len, heads, head_dim] a part that was attended untransformed; or data NULL */
  const float* own_lse;
  tersekv_cuda_rows out; /* [batch, q_len, heads, head_dim] everything, untransformed; data NULL: only the state */
  float* lse;            /* of everything, or NULL */
} tersekv_cuda_parts;
TERSEKV_API tersekv_status tersekv_cuda_merge(const tersekv_cuda_parts* parts, uint64_t stream);

/* Multi-head latent attention: one row a token, 512 channels that are packed and serve as keys and values of all heads,
   and 64 rotary channels in f16 that are keys only. Queries are the absorbed ones: 512 for the latent, 64 rotary. */
typedef struct tersekv_cuda_latents {
  uint32_t struct_size; /* sizeof(tersekv_cuda_latents) */
  int32_t bits;         /* 2 to 6 or 8 */
  int32_t norm;         /* tersekv_norm */
  int32_t page_tokens;  /* a power of two, at least 16 */
  uint64_t seed;        /* of the signs */
  int32_t layer;        /* ordinal; picks the signs */
  void* pages;          /* [pages][page_bytes], aligned to 16 bytes */
  const float* mean;    /* each [512] or NULL, aligned to 16 bytes */
  const float* scale;   /* a latent is coded as (latent - mean) * inv_scale */
  const float* inv_scale;
} tersekv_cuda_latents;
/* 0 when there are no such pages. A page is [page_tokens / 16] blocks of 16 tokens: codes | 16 scales (bf16) | 16 rows
   of 64 rotary values (f16). */
TERSEKV_API size_t tersekv_cuda_latent_page_bytes(const tersekv_cuda_latents* latents);

typedef struct tersekv_cuda_latent_tokens {
  uint32_t struct_size; /* sizeof(tersekv_cuda_latent_tokens) */
  const tersekv_cuda_latents* latents;
  tersekv_cuda_rows latent; /* [tokens, 512]; token_stride alone is used */
  tersekv_cuda_rows rotary; /* [tokens, 64]; may lie behind the latent's channels */
  const int64_t* slots;     /* [tokens] page * page_tokens + place, each once; below 0: left out */
  int32_t tokens;
  int32_t* not_finite; /* set to 1 when a row is not finite (it then decodes to its mean), or not as f16; or NULL */
} tersekv_cuda_latent_tokens;
/* Encodes in one launch; the bytes are those of the CPU's encoder. */
TERSEKV_API tersekv_status tersekv_cuda_latent_append(const tersekv_cuda_latent_tokens* tokens, uint64_t stream);

typedef struct tersekv_cuda_latent_attention {
  uint32_t struct_size; /* sizeof(tersekv_cuda_latent_attention) */
  const tersekv_cuda_latents* latents;
  tersekv_cuda_rows q;        /* [batch, q_len, heads, 576]: the newest q_len tokens of each sequence */
  tersekv_cuda_rows out;      /* [batch, q_len, heads, 512] */
  float* lse;                 /* [batch, q_len, heads] natural logarithm of the softmax's sum; or NULL */
  const int32_t* lengths;     /* [batch] tokens of each sequence, those of q included; 0 is allowed */
  const int32_t* block_table; /* [batch, table_stride] page ids */
  int64_t table_stride;       /* entries */
  int32_t batch, heads, q_len;
  float scale;     /* of q.k */
  void* workspace; /* tersekv_cuda_latent_workspace_bytes, aligned to 16 bytes */
} tersekv_cuda_latent_attention;
/* Depends on batch, heads, q_len and the device alone. */
TERSEKV_API tersekv_status tersekv_cuda_latent_workspace_bytes(const tersekv_cuda_latent_attention* attention,
                                                               size_t* out);
/* Needs no plan. The same lengths give the same bits. */
TERSEKV_API tersekv_status tersekv_cuda_latent_attend(const tersekv_cuda_latent_attention* attention, uint64_t stream);

#ifdef __cplusplus
}
#endif

#endif /* TERSEKV_CUDA_API_H_ */
