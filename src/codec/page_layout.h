// SPDX-License-Identifier: Apache-2.0
// How a page of one layer keeps its tokens: a bijection of the canonical records (docs/formats.md, "CPU page").
//
// page = [kv_heads] units; unit = K codes | K scales | V codes | V scales.
//   K codes: blocks (src/bits/blocks.h) of [head_dim_k][page_tokens] codes: scores are sums over channels
//   V codes: blocks of [page_tokens][head_dim_v] codes: outputs are sums over tokens
//   scales:  [page_tokens] bf16
//   raw types: "codes" are f16, bf16 or f32 values in rows of those shapes; no scales
//   records:   "codes" are the canonical records of the tokens, or of the page, as they are; no scales
//   page mean: [head_dim] bf16 behind each side, with mean=page only
// A latent layer (LayerShape::latent) has no V: K codes and scales are those of the latent, behind them lie the rotary
// channels, f16 [head_dim_k - head_dim_v][page_tokens]. Of raw types K's rows are whole, and V is the first of them.
// What a block stores of a code (StoredCode): 5 and 6 bits: magnitude index | sign << (bits - 1), so that a lookup
// needs half the table; 8 bits: level + 128, which needs no lookup.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/codec/list.h"
#include "src/codec/record.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv {

struct SideLayout {
  Family family = Family::kF16;
  Storage storage = Storage::kRows;
  int bits = 16;  // of one value, codes and rows
  int d = 0;
  int page_tokens = 0;
  bool token_major = false;  // V
  bool page_mean = false;
  RecordShape record;  // of records
  size_t record_bytes = 0;
  bool page_record = false;                                     // one record a page
  size_t codes_offset = 0, scales_offset = 0, mean_offset = 0;  // within the unit

  bool raw() const { return storage == Storage::kRows; }
  // Tokens can only be packed a page at a time.
  bool whole_pages() const { return page_record || page_mean; }
  size_t codes_bytes() const {
    if (storage == Storage::kRecords) return record_bytes * (page_record ? 1 : static_cast<size_t>(page_tokens));
    return static_cast<size_t>(page_tokens) * static_cast<size_t>(d * bits) / 8;
  }
  size_t scales_bytes() const { return storage == Storage::kCodes ? static_cast<size_t>(page_tokens) * 2 : 0; }
  size_t mean_bytes() const { return page_mean ? static_cast<size_t>(d) * 2 : 0; }
  size_t depth() const { return static_cast<size_t>(token_major ? page_tokens : d); }  // k of blocks, rows of raw types
  size_t width() const { return static_cast<size_t>(token_major ? d : page_tokens); }  // n of blocks
  size_t row_bytes() const { return width() * static_cast<size_t>(bits) / 8; }         // of raw types
};

struct PageLayout {
  SideLayout k, v;
  int kv_heads = 0;
  int page_tokens = 0;
  size_t unit_bytes = 0, page_bytes = 0;
  bool latent = false;       // v is a view of k: without bytes of its own
  int rotary = 0;            // channels of a packed latent layer's keys behind k.d
  size_t rotary_offset = 0;  // within the unit

  int head_dim_k() const { return k.d + rotary; }
  bool whole_pages() const { return k.whole_pages() || v.whole_pages(); }
  static PageLayout Make(const KvSpec& spec, const LayerShape& shape);
  const SideLayout& side(Kv kv) const { return kv == Kv::kK ? k : v; }
};

// unit: first byte of the head's unit. slot in [0, page_tokens). codes: [d] canonical codes (ascending index).
void PackToken(const SideLayout& side, uint8_t* unit, int slot, const uint8_t* codes, uint16_t scale);
void UnpackToken(const SideLayout& side, const uint8_t* unit, int slot, uint8_t* codes, uint16_t* scale);
// Smallest magnitude that a raw type rounds to infinity.
float OverflowsAt(Family family);
// row: [d] fp32, rounded to the side's raw type.
void PackRawToken(const SideLayout& side, uint8_t* unit, int slot, const float* row);
void UnpackRawToken(const SideLayout& side, const uint8_t* unit, int slot, float* row);

// The rotary channels of token `slot` of a latent layer's unit. row: [rotary].
void PackRotary(const PageLayout& layout, uint8_t* unit, int slot, const uint16_t* row);
void UnpackRotary(const PageLayout& layout, const uint8_t* unit, int slot, uint16_t* row);

// Canonical code <-> what a page stores.
uint8_t StoredCode(int bits, uint8_t code);
uint8_t CanonicalCode(int bits, uint8_t stored);

}  // namespace tersekv
