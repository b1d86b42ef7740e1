// SPDX-License-Identifier: Apache-2.0
#include "src/cache/page_index.h"

#include <bit>
#include <cstring>

#include "src/base/check.h"
#include "src/cache/page_pool.h"

namespace tersekv {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;

uint64_t Mix(uint64_t hash, uint64_t word) { return std::rotl(hash ^ word, 29) * kOdd; }

}  // namespace

// Four chains, because one would wait for each product.
uint64_t HashBytes(std::span<const uint8_t> bytes) {
  uint64_t chains[4] = {kOdd, 2 * kOdd, 3 * kOdd, 4 * kOdd}, words[4];
  size_t at = 0;
  for (; at + sizeof words <= bytes.size(); at += sizeof words) {
    std::memcpy(words, bytes.data() + at, sizeof words);
    for (int i = 0; i < 4; ++i) chains[i] = Mix(chains[i], words[i]);
  }
  for (; at < bytes.size(); ++at) chains[0] = Mix(chains[0], bytes[at]);
  uint64_t hash = bytes.size();
  for (const uint64_t chain : chains) hash = Mix(hash, chain);
  return hash ^ (hash >> 32);
}

Page* PageIndex::Find(std::span<const uint8_t> bytes, uint64_t hash) const {
  for (Page* page = root_; page != nullptr; page = hash < page->hash ? page->lower : page->higher) {
    if (page->hash == hash && page->bytes == bytes.size() && std::memcmp(page->data, bytes.data(), bytes.size()) == 0) {
      return page;
    }
  }
  return nullptr;
}

// Equal hashes are in the higher part.
void PageIndex::Add(Page* page, uint64_t hash) {
  TERSEKV_CHECK(!page->indexed);
  page->indexed = true;
  page->hash = hash;
  Page** at = &root_;
  while (*at != nullptr) at = hash < (*at)->hash ? &(*at)->lower : &(*at)->higher;
  *at = page;
}

void PageIndex::Remove(Page* page) {
  TERSEKV_CHECK(page->indexed);
  Page** at = &root_;
  while (*at != page) at = page->hash < (*at)->hash ? &(*at)->lower : &(*at)->higher;
  if (page->lower == nullptr || page->higher == nullptr) {
    *at = page->lower != nullptr ? page->lower : page->higher;
  } else {  // the lowest of the higher ones takes its place
    Page** lowest = &page->higher;
    while ((*lowest)->lower != nullptr) lowest = &(*lowest)->lower;
    Page* next = *lowest;
    *lowest = next->higher;
    next->lower = page->lower;
    next->higher = page->higher;
    *at = next;
  }
  page->lower = page->higher = nullptr;
  page->indexed = false;
}

}  // namespace tersekv
