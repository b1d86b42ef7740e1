// SPDX-License-Identifier: Apache-2.0
// Arrays on 64-byte lines, and on huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace tersekv {

inline constexpr size_t kLineBytes = 64;

struct AlignedDelete {
  void operator()(void* p) const { ::operator delete (p, std::align_val_t{kLineBytes}); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], AlignedDelete>;

// n zeroed values, null for n = 0. Throws nothing that this library catches: out of system memory ends the program.
template <class T>
AlignedArray<T> MakeAligned(size_t n) {
  static_assert(std::is_trivial_v<T>);
  if (n == 0) return nullptr;
  void* p = ::operator new (n * sizeof(T), std::align_val_t{kLineBytes});
  std::memset(p, 0, n * sizeof(T));
  return AlignedArray<T>(static_cast<T*>(p));
}

// Memory that the system may back with huge pages: once UseHugePages asks for them (Linux 6.1 and later), so that until
// then only what was touched is resident; elsewhere from the start. Not zeroed. bytes: a multiple of kHugePageBytes.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

struct HugeDelete {
  size_t bytes = 0;
  void operator()(uint8_t* p) const;
};
using HugeArray = std::unique_ptr<uint8_t[], HugeDelete>;

HugeArray MakeHuge(size_t bytes);
// Of all bytes of a HugeArray that is filled: a wish, where it is not granted small pages do.
void UseHugePages(uint8_t* begin, size_t bytes);
size_t HugeBytes();  // of all such arrays now: malloc does not see them

inline constexpr size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace tersekv
