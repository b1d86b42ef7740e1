# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=<build folder> -DWORK=<folder to use> -DLLAMA=<ON|OFF> [-DLLAMA_DIR= -DPREFIX_PATH=<a:b> -DCXX_FLAGS=]
#   -P install_test.cmake
# Installs the build into a prefix of its own and uses it from a project outside.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
set(ENV{CMAKE_PREFIX_PATH} "${WORK}/prefix:${PREFIX_PATH}")
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/outside" -B "${WORK}/build" -DCMAKE_BUILD_TYPE=Release
  "-Dllama_DIR=${LLAMA_DIR}" -DWITH_LLAMA=${LLAMA} "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
  "-DCMAKE_C_FLAGS=${CXX_FLAGS}")
run(${CMAKE_COMMAND} --build "${WORK}/build")
foreach(program outside outside_c)
  run("${WORK}/build/${program}")
  message("${out}")
endforeach()
if(LLAMA)
  run("${WORK}/build/outside_llama")
  message("${out}")
  # The installed program finds libllama without help.
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH "${WORK}/prefix/bin/tersekv" --version)
  message("${out}")
endif()
