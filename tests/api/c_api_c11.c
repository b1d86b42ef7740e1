/* SPDX-License-Identifier: Apache-2.0
 * The C API from C11: what c_api_test.cc calls as a C program would. Returns 0, or the line that failed. */
#include <math.h>
#include <string.h>

#include "tersekv/c_api.h"

int tersekv_c11_codec(void);
int tersekv_c11_cache(float* out);

#define REQUIRE(condition) \
  if (!(condition)) return __LINE__

int tersekv_c11_codec(void) {
  enum { kDim = 64, kRows = 3, kRecord = 64 * 4 / 8 + 2 };
  tersekv_codec* codec = NULL;
  float rows[kRows * kDim], back[kRows * kDim], mean[kDim];
  uint8_t records[kRows * kRecord];
  double error = 0, power = 0;
  int i;
  for (i = 0; i < kRows * kDim; ++i) rows[i] = sinf((float)(i * i)) + 3.0f;
  for (i = 0; i < kDim; ++i) mean[i] = 3.0f;
  REQUIRE(tersekv_codec_create("k4v4", TERSEKV_V, kDim, 0, 0, mean, NULL, &codec) == TERSEKV_OK);
  REQUIRE(tersekv_codec_record_bytes(codec) == kRecord);
  REQUIRE(tersekv_codec_encode(codec, rows, kRows, records) == TERSEKV_OK);
  REQUIRE(tersekv_codec_decode(codec, records, kRows, back) == TERSEKV_OK);
  for (i = 0; i < kRows * kDim; ++i) {
    error += ((double)rows[i] - back[i]) * ((double)rows[i] - back[i]);
    power += ((double)rows[i] - 3.0) * ((double)rows[i] - 3.0);
  }
  REQUIRE(error < 0.03 * power);
  tersekv_codec_destroy(codec);
  return 0;
}

/* One token of one head: attention over itself gives its value. out: [32]. */
int tersekv_c11_cache(float* out) {
  const tersekv_layer_shape shape = {1, 1, 32, 32};
  const tersekv_step_token token = {7, 0};
  tersekv_cache_config config;
  tersekv_attention attention;
  tersekv_usage usage;
  tersekv_cache* cache = NULL;
  float row[32];
  int i;
  for (i = 0; i < 32; ++i) row[i] = (float)i;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.spec = "k4v4";
  config.layers = &shape;
  config.n_layers = 1;
  config.max_workers = 1;
  memset(&attention, 0, sizeof attention);
  attention.struct_size = sizeof attention;
  attention.scale = 1;
  attention.heads = 1;
  attention.q = row;
  attention.out = out;
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  REQUIRE(tersekv_cache_create(&config, &cache) == TERSEKV_OK);
  REQUIRE(tersekv_step_begin(cache, &token, 1) == TERSEKV_OK);
  REQUIRE(tersekv_step_write_rows(cache, 0, TERSEKV_K, row, sizeof row, 0, 1) == TERSEKV_OK);
  REQUIRE(tersekv_step_write_rows(cache, 0, TERSEKV_V, row, sizeof row, 0, 1) == TERSEKV_OK);
  REQUIRE(tersekv_step_attend(cache, 0, &attention, 0, 1) == TERSEKV_OK);
  REQUIRE(tersekv_step_end(cache) == TERSEKV_OK);
  REQUIRE(tersekv_sequence_length(cache, 7) == 1);
  REQUIRE(tersekv_cache_usage(cache, &usage) == TERSEKV_OK);
  REQUIRE(usage.tokens == 1 && usage.bytes_used > 0 && usage.bytes_reserved >= usage.bytes_used);
  tersekv_cache_destroy(cache);
  return 0;
}
