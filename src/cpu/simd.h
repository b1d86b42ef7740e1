// SPDX-License-Identifier: Apache-2.0
// Which SIMD target the kernels run on.
#pragma once

#include <string>
#include <vector>

namespace tersekv {

// Applies TERSEKV_FORCE_ISA once per process; call before the first kernel. Thread-safe.
void ChooseSimdTarget();

// Runs every kernel on one target (a name of SimdTargets()) from now on; "" puts the choice back. For tests and the
// self-test, not while kernels run.
void ForceSimdTarget(const std::string& name);

}  // namespace tersekv
