// SPDX-License-Identifier: Apache-2.0
// Pages of a few sizes under one byte budget, with reference counts for sharing. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/base/aligned.h"
#include "src/cache/page_index.h"

namespace tersekv {

struct Page {
  int refs = 0;
  int16_t size_class = 0;
  bool indexed = false;  // as the last three: of PageIndex
  size_t bytes = 0;
  uint8_t* data = nullptr;
  AlignedArray<uint8_t> own;  // its memory, unless that is part of a slab
  uint64_t hash = 0;
  Page *lower = nullptr, *higher = nullptr;
};

class PagePool {
 public:
  // budget: limit of bytes_reserved(); 0 = none.
  explicit PagePool(size_t budget) : budget_(budget) {}

  // Same bytes, same class.
  int SizeClass(size_t page_bytes);

  // A zeroed page with one reference, or null when the budget does not allow it. Idle pages of other sizes are given
  // back to the system before that is said. Without a budget pages come from slabs, which the system backs with huge
  // pages once all of their pages were taken: walking a long history then misses the TLB less (docs/perf/cpu.md).
  Page* Take(int size_class);
  void Retain(Page* page) { ++page->refs; }
  void Release(Page* page);

  // Pages that others are to be compared with. Equal: a page that Remember was given and that has these bytes, with one
  // reference more, or null. Both are for pages that are full; one that was written to again is given to Remember
  // again.
  Page* Equal(std::span<const uint8_t> bytes);
  void Remember(Page* page);

  // Accounts for memory that is not pages (raw rows, statistics, tables) under the same budget.
  bool Charge(size_t bytes);
  void Refund(size_t bytes) { charged_ -= bytes; }

  size_t budget() const { return budget_; }
  size_t page_bytes_used() const { return used_; }
  size_t bytes_reserved() const { return used_ + idle_ + slab_rests_ + charged_; }
  // Bytes that can still be taken, idle pages included.
  size_t available() const;

 private:
  bool MakeRoom(size_t bytes);
  void AddSlab(int size_class);

  size_t budget_;
  PageIndex index_;
  size_t used_ = 0, idle_ = 0, charged_ = 0;
  size_t slab_rests_ = 0;  // bytes of slabs that hold no page
  std::vector<size_t> class_bytes_;
  std::vector<size_t> class_pages_;  // taken from slabs so far
  std::vector<AlignedArray<uint8_t>> small_slabs_;
  std::vector<HugeArray> slabs_;
  std::vector<std::pair<uint8_t*, size_t>> open_slabs_;  // by class: the slab that still has pages never taken, or null
  std::vector<std::vector<std::unique_ptr<Page>>> idle_pages_;  // by class
};

// A counted reference to a page, or none.
class PageRef {
 public:
  PageRef() = default;
  PageRef(PagePool* pool, Page* page) : pool_(pool), page_(page), data_(page->data) {}  // takes over one reference
  PageRef(PageRef&& o) noexcept
      : pool_(o.pool_), page_(std::exchange(o.page_, nullptr)), data_(std::exchange(o.data_, nullptr)) {}
  PageRef& operator=(PageRef&& o) noexcept {
    std::swap(pool_, o.pool_);
    std::swap(page_, o.page_);
    std::swap(data_, o.data_);
    return *this;
  }
  ~PageRef() {
    if (page_ != nullptr) pool_->Release(page_);
  }
  PageRef Share() const {
    if (page_ == nullptr) return {};
    pool_->Retain(page_);
    return {pool_, page_};
  }
  bool held() const { return page_ != nullptr; }
  Page* page() const { return page_; }
  bool shared() const { return page_->refs > 1; }
  size_t bytes() const { return page_->bytes; }
  uint8_t* data() const { return data_; }

 private:
  PagePool* pool_ = nullptr;
  Page* page_ = nullptr;
  uint8_t* data_ = nullptr;  // of the page: one miss less for who walks a history
};

}  // namespace tersekv
