// SPDX-License-Identifier: Apache-2.0
// The tags of all record codecs, once: what is laid out, compiled for each SIMD target and tested comes from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>

#include "src/codec/fp4.h"
#include "src/codec/fp8.h"
#include "src/codec/ggml_blocks.h"
#include "src/codec/kivi.h"
#include "src/codec/prod.h"
#include "src/codec/record.h"
#include "src/codec/trellis.h"
#include "src/codec/vq2.h"
#include "src/transform/rotation.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv {

inline constexpr std::tuple<Fp8, Fp8Head, Fp8Tensor, Mxfp4, Nvfp4, Q8_0, Q5_0, Q4_0, Iq4Nl, Trellis, Vq2, Prod,
                            KiviKeys, KiviValues>
    kRecordTags;

// Calls f(tag) for each tag.
template <class F>
constexpr void ForEachRecordTag(F&& f) {
  std::apply([&f](auto... tag) { (f(tag), ...); }, kRecordTags);
}

// Whether `tag` stores side `kv` of its family: KIVI has a tag for pages of keys and one for values.
template <RecordTag T>
constexpr bool Serves(T, Family family, Kv kv) {
  return T::kFamily == family && (family != Family::kKivi || T::kPage == (kv == Kv::kK));
}

// Calls f with the tag that stores side `kv` of the family; false: there is none.
template <class F>
constexpr bool WithRecordTag(Family family, Kv kv, F&& f) {
  bool found = false;
  ForEachRecordTag([&](auto tag) {
    if (!Serves(tag, family, kv)) return;
    found = true;
    f(tag);
  });
  return found;
}

// The shape of one side of a head under `spec`, without what prod projects on.
inline RecordShape RecordShapeOf(const KvSpec& spec, Kv kv, int d) {
  const SideSpec& side = kv == Kv::kK ? spec.k : spec.v;
  return {.d = d, .bits = side.bits, .group = spec.group, .page_tokens = spec.page, .norm = side.norm};
}

// S of prod: one for all heads of a cache.
std::shared_ptr<const RotationOp> ProjectionOf(const KvSpec& spec, int d);

// The largest head_dim divisor that side `kv` of the family asks for.
inline int RecordBlock(Family family, Kv kv) {
  int block = 1;
  WithRecordTag(family, kv, [&block](auto tag) { block = tag.kBlock; });
  return block;
}

inline constexpr size_t kScratchAlign = 64;

inline std::byte* AlignScratch(float* p) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  return reinterpret_cast<std::byte*>((at + kScratchAlign - 1) / kScratchAlign * kScratchAlign);
}

// Floats that encoding rows of one head needs.
inline size_t RecordScratchFloats(Family family, Kv kv, const RecordShape& shape) {
  size_t floats = 0;
  WithRecordTag(family, kv, [&](auto tag) {
    const size_t rows = tag.kPage ? static_cast<size_t>(shape.page_tokens) : 1;
    floats = (rows + 1) * static_cast<size_t>(shape.d) + 32 + (tag.ScratchBytes(shape) + kScratchAlign) / 4 + 1;
  });
  return floats;
}

}  // namespace tersekv
