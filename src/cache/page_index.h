// SPDX-License-Identifier: Apache-2.0
// Finds a page by its bytes, so that equal ones are held once. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersekv {

struct Page;

// Of a whole page; equal bytes have equal hashes, others are told apart by comparing them.
uint64_t HashBytes(std::span<const uint8_t> bytes);

// What was added is looked at by its hash of that time: a page that has changed since is not found, and not taken for
// another, because bytes are compared as they are now. A tree in the pages themselves: it takes no memory of its own,
// so that a budget cannot fail for it; hashes are as good as random, so that nothing need balance it.
class PageIndex {
 public:
  // A page with these bytes, or null.
  Page* Find(std::span<const uint8_t> bytes, uint64_t hash) const;
  void Add(Page* page, uint64_t hash);  // it is not in here
  void Remove(Page* page);              // it is
  bool empty() const { return root_ == nullptr; }

 private:
  Page* root_ = nullptr;
};

}  // namespace tersekv
