// SPDX-License-Identifier: Apache-2.0
namespace tersekv::gpu {
void CheckPrefill(bool) {}
}  // namespace tersekv::gpu
