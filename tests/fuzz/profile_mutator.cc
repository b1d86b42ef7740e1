// SPDX-License-Identifier: Apache-2.0
// Mutates the header or the data of a profile and puts its lengths and checksum right again.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "src/io/crc64.h"
#include "tests/io/profiles.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace {

using tersekv::Crc64;

std::string Mutated(std::string text, size_t most) {
  const size_t size = text.size(), room = std::max(size + 64, size_t{256});
  text.resize(std::min(room, std::max(most, size)));
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
  return text;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (seed % 16 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string file(reinterpret_cast<const char*>(data), size);
  uint64_t length = 0;
  if (size >= 8) std::memcpy(&length, data, 8);
  if (size < 8 || length > size - 8) {
    file = tersekv::SerializeProfile(tersekv::testing::SmallProfile()).value();
    std::memcpy(&length, file.data(), 8);
  }
  std::string text = file.substr(8, length), tensors = file.substr(8 + length);
  (seed % 4 == 1 ? tensors : text) = Mutated(seed % 4 == 1 ? tensors : text, most);
  while (text.size() % 8 != 0) text += ' ';
  length = text.size();
  file.assign(reinterpret_cast<const char*>(&length), 8);
  file += text;
  file += tensors;
  const std::string field = "\"checksum\":\"";
  const size_t at = file.find(field, 8) + field.size();
  if (at >= field.size() && at + 16 <= file.size() && seed % 32 != 2) {
    file.replace(at, 16, 16, '0');
    uint64_t crc = Crc64(file);
    for (size_t i = 16; i-- > 0; crc >>= 4) file[at + i] = "0123456789abcdef"[crc & 15];
  }
  if (file.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, file.data(), file.size());
  return file.size();
}
