// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tersekv::gpu {

// small: few and short, for compute-sanitizer.
void CheckAppend(bool small);
void CheckNotFinite();
void CheckDecompress(bool small);
void CheckPrefill(bool small);
void CheckLatents(bool small);
void CheckAttend(bool small, bool raw);  // raw: with sinks and newest tokens beside the packed ones
void CheckRing();
void CheckGraph();
void CheckStreams();
void CheckLong();
void CheckRefusals();
void CheckAbi(bool small);

}  // namespace tersekv::gpu
