/* SPDX-License-Identifier: Apache-2.0
 *
 * C ABI of TerseKV. Opaque handles; arrays are base pointer + byte strides; every function that can fail returns a
 * status and leaves a message for the calling thread (tersekv_last_error). Structs carry their size, so that a newer
 * library reads an older caller; none ends in padding, which a newer field would take. append and attend allocate
 * nothing. Functions of one cache are for one thread, but for write_rows and attend, which take a worker number and may
 * run at once.
 */
#ifndef TERSEKV_C_API_H_
#define TERSEKV_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define TERSEKV_API
#else
#define TERSEKV_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TERSEKV_ABI_VERSION 1

typedef enum tersekv_status {
  TERSEKV_OK = 0,
  TERSEKV_INVALID_ARGUMENT = 1,
  TERSEKV_NOT_FOUND = 2,
  TERSEKV_OUT_OF_BUDGET = 3,
  TERSEKV_UNSUPPORTED = 4,
  TERSEKV_DATA_LOSS = 5,
  TERSEKV_INTERNAL = 6 /* also: out of memory, or a count that no memory holds; nothing is thrown into the caller */
} tersekv_status;

typedef enum tersekv_side { TERSEKV_K = 0, TERSEKV_V = 1 } tersekv_side;

typedef struct tersekv_codec tersekv_codec;
typedef struct tersekv_cache tersekv_cache;

TERSEKV_API const char* tersekv_version(void);
TERSEKV_API int32_t tersekv_abi_version(void);
/* Message of the calling thread's last failure; "" when there was none. Valid until its next call. */
TERSEKV_API const char* tersekv_last_error(void);

/* Writes the canonical text of a spec to out (size bytes, NUL-terminated). */
TERSEKV_API tersekv_status tersekv_spec_canonical(const char* spec, char* out, size_t size);

/* Canonical records of one (layer, kv_head, side). mean, scale: [head_dim] or NULL. */
TERSEKV_API tersekv_status tersekv_codec_create(const char* spec, tersekv_side side, int32_t head_dim, int32_t layer,
                                                int32_t kv_head, const float* mean, const float* scale,
                                                tersekv_codec** out);
TERSEKV_API void tersekv_codec_destroy(tersekv_codec* codec);
TERSEKV_API size_t tersekv_codec_record_bytes(const tersekv_codec* codec);
/* Rows that one record holds: 1, or a page of the spec for KIVI's keys. */
TERSEKV_API size_t tersekv_codec_record_rows(const tersekv_codec* codec);
/* rows: [n, head_dim] fp32; records: [ceil(n / record_rows), record_bytes]. Encoding needs n to be a multiple of
   record_rows, decoding takes the first n rows. Thread-safe. */
TERSEKV_API tersekv_status tersekv_codec_encode(const tersekv_codec* codec, const float* rows, size_t n,
                                                uint8_t* records);
TERSEKV_API tersekv_status tersekv_codec_decode(const tersekv_codec* codec, const uint8_t* records, size_t n,
                                                float* rows);

/* Head dims: 1 to 1024; packed specs take multiples of 16 from 32, with rot=h1 or h2 those whose odd part is 1, 3, 5, 7
 * or 9. */
typedef struct tersekv_layer_shape {
  int32_t heads, kv_heads, head_dim_k, head_dim_v;
} tersekv_layer_shape;

/* Errors are relative to the largest output of a head. */
typedef enum tersekv_arithmetic {
  TERSEKV_INT16 = 0, /* 16-bit queries and weights: within 5e-4 */
  TERSEKV_EXACT = 1, /* fp32: within 2e-5 */
  TERSEKV_FAST = 2   /* 8 bits for codes of up to 4 bits: within 5e-2 */
} tersekv_arithmetic;

typedef struct tersekv_cache_config {
  uint32_t struct_size; /* sizeof(tersekv_cache_config) */
  const char* spec;
  const tersekv_layer_shape* layers;
  int32_t n_layers;
  int32_t max_workers;
  uint64_t byte_budget; /* 0 = none */
  int32_t arithmetic;   /* of packed tokens, tersekv_arithmetic */
  /* Newer fields. A caller from before them has a struct_size of 48 (on 64-bit machines): the 4 bytes of padding that
     `rollback` now takes are not read, and it gets 0 and NULL. */
  int32_t rollback;       /* newest tokens that can be taken back without a trace */
  const int32_t* windows; /* [n_layers] sliding windows, 0 = all; or NULL: none */
} tersekv_cache_config;

typedef struct tersekv_step_token {
  int32_t seq, pos;
} tersekv_step_token;

typedef struct tersekv_attention {
  uint32_t struct_size; /* sizeof(tersekv_attention) */
  float scale;
  int32_t window;       /* 0 = all */
  float softcap;        /* 0 = off */
  float max_alibi_bias; /* 0 = off */
  int32_t heads;
  const float* sinks; /* [heads] or NULL */
  const float* q;     /* value c of head h of token t at q + t*q_token_stride + h*q_head_stride + 4*c (bytes) */
  int64_t q_token_stride, q_head_stride;
  float* out;
  int64_t out_token_stride, out_head_stride;
  float* lse; /* [tokens, heads] or NULL */
} tersekv_attention;

typedef struct tersekv_usage {
  uint32_t struct_size; /* sizeof(tersekv_usage) */
  uint64_t bytes_used, bytes_reserved, bytes_f16, scratch;
  int64_t tokens, tokens_packed;
  double bits_effective;
} tersekv_usage;

TERSEKV_API tersekv_status tersekv_cache_create(const tersekv_cache_config* config, tersekv_cache** out);
TERSEKV_API void tersekv_cache_destroy(tersekv_cache* cache);
/* One forward pass: begin, then per layer write_rows(K), write_rows(V), attend (each by all workers), then end or
 * abort.
 * write_rows and attend outside a step are a programmer error and stop the program. */
TERSEKV_API tersekv_status tersekv_step_begin(tersekv_cache* cache, const tersekv_step_token* tokens, size_t n);
TERSEKV_API tersekv_status tersekv_step_write_rows(tersekv_cache* cache, int32_t layer, tersekv_side side,
                                                   const float* rows, int64_t row_stride, int32_t worker,
                                                   int32_t workers);
TERSEKV_API tersekv_status tersekv_step_attend(tersekv_cache* cache, int32_t layer, const tersekv_attention* attention,
                                               int32_t worker, int32_t workers);
TERSEKV_API tersekv_status tersekv_step_end(tersekv_cache* cache);
TERSEKV_API void tersekv_step_abort(tersekv_cache* cache);

TERSEKV_API int64_t tersekv_sequence_length(const tersekv_cache* cache, int32_t seq);
/* Positions of its first and last token, -1 when it is empty. A windowed layer may have given back what lies before. */
TERSEKV_API int32_t tersekv_sequence_first_position(const tersekv_cache* cache, int32_t seq);
TERSEKV_API int32_t tersekv_sequence_last_position(const tersekv_cache* cache, int32_t seq);
TERSEKV_API tersekv_status tersekv_sequence_truncate(tersekv_cache* cache, int32_t seq, int64_t tokens);
TERSEKV_API tersekv_status tersekv_sequence_fork(tersekv_cache* cache, int32_t from, int32_t to);
TERSEKV_API void tersekv_sequence_remove(tersekv_cache* cache, int32_t seq);
/* Ranges are positions [begin, end); begin < 0: from the first, end < 0: to the last. */
TERSEKV_API tersekv_status tersekv_sequence_remove_range(tersekv_cache* cache, int32_t seq, int64_t begin, int64_t end);
/* `to` must be empty. */
TERSEKV_API tersekv_status tersekv_sequence_copy(tersekv_cache* cache, int32_t from, int32_t to, int64_t begin,
                                                 int64_t end);
/* Removes all others. */
TERSEKV_API void tersekv_sequence_keep(tersekv_cache* cache, int32_t seq);

/* How keys turn with their position: pair i by frequency[i] radians a position, of channels first_channel + 2i and + 1
 * when interleaved, else first_channel + i and first_channel + i + pairs. */
typedef struct tersekv_key_rotation {
  const double* frequency; /* [pairs] */
  int32_t pairs;           /* 0: these keys know no position */
  int32_t interleaved;
  int32_t first_channel;
} tersekv_key_rotation;

/* Adds delta to the positions of a range and turns its keys; what would come below 0 is removed. rotations: one for all
 * layers, one a layer, or none. */
TERSEKV_API tersekv_status tersekv_sequence_shift(tersekv_cache* cache, int32_t seq, int64_t begin, int64_t end,
                                                  int64_t delta, const tersekv_key_rotation* rotations, size_t n);
TERSEKV_API tersekv_status tersekv_cache_usage(const tersekv_cache* cache, tersekv_usage* usage);

#ifdef __cplusplus
}
#endif

#endif /* TERSEKV_C_API_H_ */
