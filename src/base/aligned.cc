// SPDX-License-Identifier: Apache-2.0
#include "src/base/aligned.h"

#include <atomic>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tersekv {
namespace {

std::atomic<size_t> huge_bytes{0};

}  // namespace

size_t HugeBytes() { return huge_bytes; }

#if defined(__linux__)

namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

// Whether pages that are resident can be made huge: madvise of nothing tells whether it knows the advice.
bool CanCollapse() {
  static const bool can = madvise(nullptr, 0, MADV_COLLAPSE) == 0;
  return can;
}

}  // namespace

// Mapped by hand: an aligned `new` of this size takes twice the address space.
HugeArray MakeHuge(size_t bytes) {
  const size_t mapped = bytes + kHugePageBytes;
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<uint8_t*>(p);
  const size_t skip = RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) - reinterpret_cast<uintptr_t>(begin);
  if (skip > 0) munmap(begin, skip);
  if (skip < kHugePageBytes) munmap(begin + skip + bytes, kHugePageBytes - skip);
  madvise(begin + skip, bytes, CanCollapse() ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  huge_bytes += bytes;
  return {begin + skip, HugeDelete{bytes}};
}

void UseHugePages(uint8_t* begin, size_t bytes) {
  if (!CanCollapse()) return;
  madvise(begin, bytes, MADV_HUGEPAGE);
  madvise(begin, bytes, MADV_COLLAPSE);  // without it they would come when the system finds the time
}

void HugeDelete::operator()(uint8_t* p) const {
  munmap(p, bytes);
  huge_bytes -= bytes;
}

#else

void UseHugePages(uint8_t*, size_t) {}

HugeArray MakeHuge(size_t bytes) {
  void* p = ::operator new (bytes, std::align_val_t{kHugePageBytes});
  huge_bytes += bytes;
  return {static_cast<uint8_t*>(p), HugeDelete{bytes}};
}

void HugeDelete::operator()(uint8_t* p) const {
  ::operator delete (p, std::align_val_t{kHugePageBytes});
  huge_bytes -= bytes;
}

#endif

}  // namespace tersekv
