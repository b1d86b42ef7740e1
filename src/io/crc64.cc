// SPDX-License-Identifier: Apache-2.0
#include "src/io/crc64.h"

#include <array>
#include <cstddef>

namespace tersekv {
namespace {

constexpr uint64_t kPolynomial = 0xc96c5795d7870f42;

constexpr std::array<uint64_t, 256> kTable = [] {
  std::array<uint64_t, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    uint64_t r = i;
    for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ ((r & 1) != 0 ? kPolynomial : 0);
    table[i] = r;
  }
  return table;
}();

}  // namespace

uint64_t Crc64(std::string_view bytes, uint64_t crc) {
  crc = ~crc;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

}  // namespace tersekv
