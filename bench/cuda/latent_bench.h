// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tersekv::gpu {

// Times attention of 128 heads over packed latents, `batch` sequences of `context` tokens, and their append; one line.
void BenchLatents(int bits, int batch, int context);

}  // namespace tersekv::gpu
