// SPDX-License-Identifier: Apache-2.0
// Status -> Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include "tersekv/status.h"

namespace tersekv::python {

// kInvalidArgument, kUnsupported, kDataLoss: ValueError; kNotFound: LookupError; kOutOfBudget: MemoryError; kInternal:
// RuntimeError. The message is the Status's.
[[noreturn]] inline void Raise(const Status& status) {
  PyObject* type = PyExc_ValueError;
  if (status.code() == StatusCode::kNotFound) type = PyExc_LookupError;
  if (status.code() == StatusCode::kOutOfBudget) type = PyExc_MemoryError;
  if (status.code() == StatusCode::kInternal) type = PyExc_RuntimeError;
  PyErr_SetString(type, status.message().c_str());
  throw nanobind::python_error();
}

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T Take(Result<T> result) {
  if (!result) Raise(result.error());
  return *std::move(result);
}

}  // namespace tersekv::python
