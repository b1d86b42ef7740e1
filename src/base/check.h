// SPDX-License-Identifier: Apache-2.0
// Checks for programmer errors: they stop the program with the place and the condition.
#pragma once

#include <cstdio>
#include <cstdlib>

#define TERSEKV_CHECK(condition)                                                         \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#define TERSEKV_RETURN_IF_ERROR(expression)                       \
  do {                                                            \
    if (::tersekv::Status s_ = (expression); !s_.ok()) return s_; \
  } while (false)
