// SPDX-License-Identifier: Apache-2.0
// How the C ABI reports: a status code, and a message for the calling thread. Nothing is thrown into a C caller.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <new>
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

// What the library never throws on purpose: memory ran out, or a number is absurd. As long as there is no memory for
// the message either, it is "".
inline void Caught(const char* what) noexcept {
  try {
    last_error = what;
  } catch (...) {
    last_error.clear();
  }
}

// body(), or `otherwise` when it throws: around each function of the ABI.
template <class Body, class T = tersekv_status>
T Guard(const Body& body, T otherwise = TERSEKV_INTERNAL) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    Caught("out of memory: the cache of this call can only be destroyed; give it a byte budget that the machine has");
  } catch (const std::exception& e) {
    Caught(e.what());
  } catch (...) {
    Caught("something unknown was thrown");
  }
  return otherwise;
}

}  // namespace tersekv::c
