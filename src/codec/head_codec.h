// SPDX-License-Identifier: Apache-2.0
// Everything that turns rows of one (layer, KV head, side) into codes and scales; encode-inl.h and records-inl.h do it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/codec/record.h"
#include "src/transform/rotation.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv {

// The rotation of a spec that CheckSupported has passed.
inline RotationKind RotationKindOf(Rotation rotation) {
  switch (rotation) {
    case Rotation::kNone:
      return RotationKind::kNone;
    case Rotation::kH1:
      return RotationKind::kHadamard;
    case Rotation::kH2:
      return RotationKind::kHadamard2;
    case Rotation::kHaar:
      return RotationKind::kHaar;
  }
  return RotationKind::kNone;
}

struct HeadCodec {
  Family family = Family::kLloydMax;
  Kv side = Kv::kK;
  int d = 0;
  int bits = 0;  // 2..8, codes only
  NormMode norm = NormMode::kLs;
  const RotationOp* rotation = nullptr;
  const float* mean = nullptr;       // [d] or null
  const float* scale = nullptr;      // [d] or null
  const float* inv_scale = nullptr;  // [d] or null: its reciprocals, a row is multiplied by them
  const float* page_mean = nullptr;  // [d] or null: of rows after mean and scale (mean=page)
  float sqrt_d = 0;
  RecordShape record;  // records only
};

// R x' -> x, in place: rotation undone, the page's mean, scale and mean put back. row: [d]; scratch: [d].
void RestoreRow(const HeadCodec& codec, float* row, float* scratch);

// Floats that EncodeLanes needs for one block of Count() rows.
inline constexpr size_t EncodeScratchFloats(int d, size_t lanes) { return (3 * static_cast<size_t>(d) + 34) * lanes; }

}  // namespace tersekv
