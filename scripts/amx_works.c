/* SPDX-License-Identifier: Apache-2.0 */
/* Exits with 0 when AMX tiles work as llama.cpp uses them. They do not where the kernel or a virtual machine withholds
 * them, and with compilers (GCC 12) whose _tile_loadconfig reads eight bytes of the configuration only, so that the
 * rest is optimised away: llama.cpp then dies of an illegal instruction. Compile as it is compiled, with -O3. */
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct __attribute__((packed)) {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} TileConfig;

__attribute__((noinline)) static void Configure(void) {
  TileConfig config __attribute__((aligned(64))) = {.palette = 1};
  for (int t = 0; t < 3; ++t) {
    config.row_bytes[t] = 64;
    config.rows[t] = 16;
  }
  _tile_loadconfig(&config);
}

int main(void) {
  enum { kRequestPermission = 0x1023, kTileData = 18 };
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 1;
  int8_t a[1024];
  int32_t c[256];
  for (int i = 0; i < 1024; ++i) a[i] = 1;
  Configure();
  usleep(200); /* tiles must outlive a switch of context */
  _tile_zero(0);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, a, 64);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, c, 64);
  for (int i = 0; i < 256; ++i) {
    if (c[i] != 64) return 1;
  }
  return 0;
}
