// SPDX-License-Identifier: Apache-2.0
#include "src/api/c_status.h"

extern "C" const char* tersekv_last_error(void) { return tersekv::c::last_error.c_str(); }
