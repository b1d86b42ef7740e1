// SPDX-License-Identifier: Apache-2.0
// CRC-64/XZ (ECMA-182 polynomial, reflected): finds every error within 64 neighbouring bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace tersekv {

// crc: of the bytes before, 0 at the start. Crc64("123456789") = 995dc9bbdf1939fa.
uint64_t Crc64(std::string_view bytes, uint64_t crc = 0);

}  // namespace tersekv
