// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry; TERSEKV_FUZZ_TARGET is the function of fuzz.h.
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tersekv::fuzz::TERSEKV_FUZZ_TARGET({data, size});
  return 0;
}
