// SPDX-License-Identifier: Apache-2.0
#include "src/codec/record_list.h"

namespace tersekv {

std::shared_ptr<const RotationOp> ProjectionOf(const KvSpec& spec, int d) {
  const RotationKind kind = ProjectionKindOf(spec.rotation, d);
  const auto gaussian =
      kind == RotationKind::kGaussian ? GaussianMatrix(DerivedSeed(spec.seed, kProjection), d) : nullptr;
  return std::make_shared<const RotationOp>(MakeProjection(kind, spec.seed, 0, 0, false, d, gaussian));
}

}  // namespace tersekv
