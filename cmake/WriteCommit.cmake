# SPDX-License-Identifier: Apache-2.0
# Run at each build: writes the commit to OUT, and touches OUT only when it changed.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY "${SOURCE}"
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define TERSEKV_COMMIT \"${commit}\"\n" @ONLY)
