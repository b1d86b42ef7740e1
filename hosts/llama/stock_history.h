// SPDX-License-Identifier: Apache-2.0
// A long history for a stock context without running the model over it: for measuring speed at a depth.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tersekv/status.h"

namespace tersekv::llama {

// state: what llama_state_seq_get_data gives for a sequence (one stream, V not transposed: flash attention).
// The same for `tokens` tokens at positions 0, 1, ..: its rows, over and over; what recurrent layers keep stays.
// kUnsupported when the bytes are not laid out as this version of llama.cpp writes them.
Result<std::vector<uint8_t>> RepeatState(std::span<const uint8_t> state, int32_t seq, int64_t tokens);

}  // namespace tersekv::llama
