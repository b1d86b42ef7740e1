# SPDX-License-Identifier: Apache-2.0
# How targets of this project are made: language level, warnings, rooms.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Static libraries keep their symbols inside what they are linked into; shared ones (BUILD_SHARED_LIBS) show all of
# them, since the C++ API has no export marks. A program that must outlive a library update uses tersekv/c_api.h.
if(NOT BUILD_SHARED_LIBS)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include(GNUInstallDirs)

find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
find_package(hwy CONFIG QUIET)
if(NOT hwy_FOUND)  # some distributions ship only a pkg-config file
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
  add_library(hwy::hwy ALIAS PkgConfig::hwy)
endif()

add_library(tersekv_options INTERFACE)
# Packed bytes are identical on every machine only when nothing contracts a*b+c behind our back (docs/numerics.md).
set(tersekv_warnings -ffp-contract=off -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>  # GCC 12 sees both in std containers where there are none
  $<$<BOOL:${TERSEKV_WERROR}>:-Werror>)
target_compile_options(tersekv_options INTERFACE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${tersekv_warnings}>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TERSEKV_WERROR}>>:-Werror=all-warnings>")
target_include_directories(tersekv_options INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}")
target_link_libraries(tersekv_options INTERFACE fmt::fmt)

# A room of the house: tersekv_room(codec SOURCES a.cc b.cc DEPS base bits). Headers are included as "src/<room>/x.h".
function(tersekv_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  add_library(tersekv_${name} OBJECT ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND tersekv_ OUTPUT_VARIABLE deps)
  target_link_libraries(tersekv_${name} PUBLIC tersekv_options ${deps} ${ARG_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY TERSEKV_ROOMS tersekv_${name})
endfunction()
