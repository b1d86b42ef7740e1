// SPDX-License-Identifier: Apache-2.0
#include "src/cache/page_pool.h"

#include <cstring>
#include <limits>

namespace tersekv {

int PagePool::SizeClass(size_t page_bytes) {
  for (size_t c = 0; c < class_bytes_.size(); ++c) {
    if (class_bytes_[c] == page_bytes) return static_cast<int>(c);
  }
  class_bytes_.push_back(page_bytes);
  class_pages_.push_back(0);
  open_slabs_.emplace_back();
  idle_pages_.emplace_back();
  return static_cast<int>(class_bytes_.size()) - 1;
}

bool PagePool::MakeRoom(size_t bytes) {
  if (budget_ == 0) return true;
  for (auto& pages : idle_pages_) {
    while (bytes_reserved() + bytes > budget_ && !pages.empty()) {
      idle_ -= pages.back()->bytes;
      pages.pop_back();
    }
  }
  return bytes_reserved() + bytes <= budget_;
}

// Slabs double until they are large enough for huge pages, so that a short history stays small.
void PagePool::AddSlab(int size_class) {
  const size_t bytes = class_bytes_[static_cast<size_t>(size_class)];
  size_t& taken = class_pages_[static_cast<size_t>(size_class)];
  size_t pages = taken > 0 ? taken : 1, slab = pages * bytes;
  uint8_t* memory = nullptr;
  if (slab < kHugePageBytes) {
    memory = small_slabs_.emplace_back(MakeAligned<uint8_t>(slab)).get();
  } else {
    slab = RoundUp(bytes, kHugePageBytes);
    while (slab % bytes > slab / 32 && slab < 8 * kHugePageBytes) slab += kHugePageBytes;
    pages = slab / bytes;
    memory = slabs_.emplace_back(MakeHuge(slab)).get();
    open_slabs_[static_cast<size_t>(size_class)] = {memory, slab};
  }
  taken += pages;
  idle_ += pages * bytes;
  slab_rests_ += slab - pages * bytes;
  auto& idle = idle_pages_[static_cast<size_t>(size_class)];
  for (size_t i = pages; i-- > 0;) {  // the first one is taken first
    auto page = std::make_unique<Page>();
    page->size_class = static_cast<int16_t>(size_class);
    page->bytes = bytes;
    page->data = memory + i * bytes;
    idle.push_back(std::move(page));
  }
}

Page* PagePool::Take(int size_class) {
  const size_t bytes = class_bytes_[static_cast<size_t>(size_class)];
  auto& idle = idle_pages_[static_cast<size_t>(size_class)];
  if (idle.empty() && budget_ == 0) AddSlab(size_class);
  std::unique_ptr<Page> page;
  if (!idle.empty()) {
    page = std::move(idle.back());
    idle.pop_back();
    idle_ -= bytes;
    std::memset(page->data, 0, bytes);
    auto& open = open_slabs_[static_cast<size_t>(size_class)];
    if (idle.empty() && open.first != nullptr) {
      UseHugePages(open.first, open.second);
      open = {};
    }
  } else {
    if (!MakeRoom(bytes)) return nullptr;
    page = std::make_unique<Page>();
    page->size_class = static_cast<int16_t>(size_class);
    page->bytes = bytes;
    page->own = MakeAligned<uint8_t>(bytes);
    page->data = page->own.get();
  }
  page->refs = 1;
  used_ += bytes;
  return page.release();
}

void PagePool::Release(Page* page) {
  if (--page->refs > 0) return;
  if (page->indexed) index_.Remove(page);
  used_ -= page->bytes;
  idle_ += page->bytes;
  idle_pages_[static_cast<size_t>(page->size_class)].emplace_back(page);
}

Page* PagePool::Equal(std::span<const uint8_t> bytes) {
  Page* page = index_.Find(bytes, HashBytes(bytes));
  if (page != nullptr) Retain(page);
  return page;
}

void PagePool::Remember(Page* page) {
  if (page->indexed) index_.Remove(page);  // its bytes may be others now
  index_.Add(page, HashBytes({page->data, page->bytes}));
}

bool PagePool::Charge(size_t bytes) {
  if (!MakeRoom(bytes)) return false;
  charged_ += bytes;
  return true;
}

size_t PagePool::available() const {
  if (budget_ == 0) return std::numeric_limits<size_t>::max();
  const size_t taken = used_ + charged_;
  return taken >= budget_ ? 0 : budget_ - taken;
}

}  // namespace tersekv
