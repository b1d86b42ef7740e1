// SPDX-License-Identifier: Apache-2.0
#include "python/src/bind.h"

NB_MODULE(_core, m) {
  m.doc() = "TerseKV's C++ core: addresses, byte strides and dtypes in, nothing of torch. Use the package's classes.";
  tersekv::python::BindInfo(m);
  tersekv::python::BindCodec(m);
  tersekv::python::BindCache(m);
  tersekv::python::BindProfile(m);
  tersekv::python::BindDevice(m);
}
