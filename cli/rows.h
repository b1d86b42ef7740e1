// SPDX-License-Identifier: Apache-2.0
// Rows to measure codecs on: made up, or of a NumPy file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tersekv/status.h"

namespace tersekv::cli {

// Independent N(0, 1) values, the same for a seed everywhere up to the C library's log, cos and sin.
std::vector<float> GaussianRows(uint64_t seed, size_t n, int head_dim);

struct Rows {
  size_t n = 0;
  int head_dim = 0;
  std::vector<float> values;  // [n, head_dim]
};
// The text of a .npy file: little-endian f2, f4 or f8 in C order, [..., head_dim]; all axes but the last are rows.
// `name` is for messages.
Result<Rows> ParseNpy(const std::string& text, const std::string& name);
// What a .npy file of this type ("<f2", "<f4") and shape begins with; the values follow.
std::string NpyHeader(const std::string& type, const std::vector<size_t>& shape);

}  // namespace tersekv::cli
