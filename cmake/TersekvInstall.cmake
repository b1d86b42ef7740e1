# SPDX-License-Identifier: Apache-2.0
# What is installed: headers, libraries, the program, and a package for find_package(tersekv [COMPONENTS llama]) that
# gives tersekv::tersekv and tersekv::llama. Only for a top-level build: a parent project installs what it needs.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tersekv")

install(DIRECTORY include/tersekv DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h"
  PATTERN "llama.h" EXCLUDE PATTERN "llama_calibration.h" EXCLUDE)
install(TARGETS tersekv EXPORT tersekvTargets)
install(EXPORT tersekvTargets NAMESPACE tersekv:: DESTINATION "${package_dir}")
if(TERSEKV_LLAMA)
  set_target_properties(tersekv_llama PROPERTIES EXPORT_NAME llama INSTALL_RPATH_USE_LINK_PATH ON)
  set_target_properties(tersekv_cli PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # finds libllama where it was linked
  install(FILES include/tersekv/llama.h include/tersekv/llama_calibration.h
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tersekv")
  install(TARGETS tersekv_llama EXPORT tersekvLlamaTargets)
  install(EXPORT tersekvLlamaTargets FILE tersekvLlamaTargets.cmake NAMESPACE tersekv:: DESTINATION "${package_dir}")
endif()
if(BUILD_SHARED_LIBS)  # the program finds our own libraries beside itself
  file(RELATIVE_PATH bin_to_lib "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  set_target_properties(tersekv PROPERTIES INSTALL_RPATH "$ORIGIN")
  if(TERSEKV_LLAMA)
    set_target_properties(tersekv_llama PROPERTIES INSTALL_RPATH "$ORIGIN")
    set_target_properties(tersekv_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  endif()
endif()

set(TERSEKV_HWY_PKGCONFIG OFF)
if(TARGET PkgConfig::hwy)
  set(TERSEKV_HWY_PKGCONFIG ON)
endif()
configure_package_config_file(cmake/tersekvConfig.cmake.in "${PROJECT_BINARY_DIR}/tersekvConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tersekvConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tersekvConfig.cmake" "${PROJECT_BINARY_DIR}/tersekvConfigVersion.cmake"
  DESTINATION "${package_dir}")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
