// SPDX-License-Identifier: Apache-2.0
// The fuzz targets: each takes any bytes and stops the program where the library breaks a promise. fuzzer_main.cc runs
// one under libFuzzer (scripts/fuzz.sh), corpus_test.cc runs all of them over their corpora in every build.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "src/base/check.h"

namespace tersekv::fuzz {

void FuzzCodec(std::span<const uint8_t> data);
void FuzzSpec(std::span<const uint8_t> data);
void FuzzProfile(std::span<const uint8_t> data);
void FuzzCache(std::span<const uint8_t> data);
void FuzzSession(std::span<const uint8_t> data);

// Reads values off the input; zeros once it is used up.
class Input {
 public:
  explicit Input(std::span<const uint8_t> data) : data_(data) {}
  bool empty() const { return data_.empty(); }
  std::span<const uint8_t> rest() const { return data_; }
  uint8_t Byte() {
    if (data_.empty()) return 0;
    const uint8_t byte = data_.front();
    data_ = data_.subspan(1);
    return byte;
  }
  // The entry of a table that a byte picks.
  template <class T, size_t n>
  const T& Pick(const T (&table)[n]) {
    return table[Byte() % n];
  }

 private:
  std::span<const uint8_t> data_;
};

}  // namespace tersekv::fuzz
