// SPDX-License-Identifier: Apache-2.0
// Everything that turns rows of one (layer, KV head, side) into codes and scales; encode-inl.h does it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/transform/rotation.h"
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
  int d = 0;
  int bits = 0;  // 2..8
  NormMode norm = NormMode::kLs;
  const RotationOp* rotation = nullptr;
  const float* mean = nullptr;       // [d] or null
  const float* inv_scale = nullptr;  // [d] or null: reciprocals, a row is multiplied by them
  float sqrt_d = 0;
};

// Floats that EncodeLanes needs for one block of Count() rows.
inline constexpr size_t EncodeScratchFloats(int d, size_t lanes) { return (3 * static_cast<size_t>(d) + 34) * lanes; }

}  // namespace tersekv
