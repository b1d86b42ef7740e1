// SPDX-License-Identifier: Apache-2.0
// The parts of the module tersekv._core.
#pragma once

#include <nanobind/nanobind.h>

namespace tersekv::python {

void BindInfo(nanobind::module_& m);     // versions, specs, machine
void BindCodec(nanobind::module_& m);    // VectorCodec
void BindCache(nanobind::module_& m);    // KvCache
void BindProfile(nanobind::module_& m);  // statistics, probe
void BindDevice(nanobind::module_& m);   // pages on a CUDA device

}  // namespace tersekv::python
