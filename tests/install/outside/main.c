/* SPDX-License-Identifier: Apache-2.0 */
/* The C API from a C program. */
#include <stdio.h>
#include <string.h>
#include <tersekv/c_api.h>

enum { kDim = 64, kTokens = 200 };

static int Fail(const char* what) {
  printf("failed: %s: %s\n", what, tersekv_last_error());
  return 1;
}

int main(void) {
  char spec[64];
  float row[kDim], back[kDim], out[kDim];
  uint8_t record[kDim + 2];
  tersekv_codec* codec = NULL;
  tersekv_cache* cache = NULL;
  const tersekv_layer_shape shape = {1, 1, kDim, kDim};
  tersekv_cache_config config;
  tersekv_attention attention;
  tersekv_usage usage;
  int i;

  if (tersekv_abi_version() != TERSEKV_ABI_VERSION) return Fail("abi");
  if (tersekv_spec_canonical("k4v4+sink=4", spec, sizeof spec) != TERSEKV_OK) return Fail("spec");
  if (strcmp(spec, "k4v4") != 0) return Fail(spec);
  if (tersekv_spec_canonical("k9v9", spec, sizeof spec) != TERSEKV_INVALID_ARGUMENT) return Fail("k9v9");
  if (tersekv_last_error()[0] == '\0') return Fail("no message");

  for (i = 0; i < kDim; ++i) row[i] = (float)(i % 7) - 3.0f;
  if (tersekv_codec_create("k8v8", TERSEKV_V, kDim, 0, 0, NULL, NULL, &codec) != TERSEKV_OK) return Fail("codec");
  if (tersekv_codec_record_bytes(codec) > sizeof record) return Fail("record");
  if (tersekv_codec_encode(codec, row, 1, record) != TERSEKV_OK) return Fail("encode");
  if (tersekv_codec_decode(codec, record, 1, back) != TERSEKV_OK) return Fail("decode");
  for (i = 0; i < kDim; ++i) {
    if (back[i] - row[i] > 0.1f || row[i] - back[i] > 0.1f) return Fail("an 8-bit value is off");
  }
  tersekv_codec_destroy(codec);

  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.spec = "k4v4";
  config.layers = &shape;
  config.n_layers = 1;
  config.max_workers = 1;
  if (tersekv_cache_create(&config, &cache) != TERSEKV_OK) return Fail("cache");
  memset(&attention, 0, sizeof attention);
  attention.struct_size = sizeof attention;
  attention.scale = 0.125f;
  attention.heads = 1;
  attention.q = row;
  attention.out = out;
  for (i = 0; i < kTokens; ++i) {
    const tersekv_step_token token = {0, i};
    if (tersekv_step_begin(cache, &token, 1) != TERSEKV_OK) return Fail("begin");
    if (tersekv_step_write_rows(cache, 0, TERSEKV_K, row, 0, 0, 1) != TERSEKV_OK) return Fail("K");
    if (tersekv_step_write_rows(cache, 0, TERSEKV_V, row, 0, 0, 1) != TERSEKV_OK) return Fail("V");
    if (tersekv_step_attend(cache, 0, &attention, 0, 1) != TERSEKV_OK) return Fail("attend");
    if (tersekv_step_end(cache) != TERSEKV_OK) return Fail("end");
  }
  for (i = 0; i < kDim; ++i) {
    if (out[i] - row[i] > 0.02f || row[i] - out[i] > 0.02f) return Fail("attention over equal rows");
  }
  usage.struct_size = sizeof usage;
  if (tersekv_cache_usage(cache, &usage) != TERSEKV_OK || usage.tokens != kTokens) return Fail("usage");
  tersekv_cache_destroy(cache);
  printf("tersekv %s from C: %d tokens\n", tersekv_version(), (int)usage.tokens);
  return 0;
}
