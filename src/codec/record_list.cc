// SPDX-License-Identifier: Apache-2.0
#include "src/codec/record_list.h"

namespace tersekv {

std::shared_ptr<const RotationOp> ProjectionOf(const KvSpec& spec, int d) {
  return std::make_shared<RotationOp>(RotationKind::kHadamard, spec.seed, -1, 0, false, d);
}

}  // namespace tersekv
