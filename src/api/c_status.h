// SPDX-License-Identifier: Apache-2.0
// How the C ABI reports: a status code, and a message for the calling thread.
#pragma once

#include <fmt/format.h>

#include <string>

#include "tersekv/c_api.h"
#include "tersekv/status.h"

namespace tersekv::c {

inline thread_local std::string last_error;

inline tersekv_status Report(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<tersekv_status>(status.code());
}

inline tersekv_status Null(const char* name) { return Report(InvalidArgument(fmt::format("{} is NULL", name))); }

inline tersekv_status CheckSize(const char* name, uint32_t given, size_t known) {
  if (given == known) return TERSEKV_OK;
  return Report(InvalidArgument(
      fmt::format("{}.struct_size is {}: this library knows {} (fill it with sizeof)", name, given, known)));
}

}  // namespace tersekv::c
