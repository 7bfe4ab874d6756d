# SPDX-License-Identifier: Apache-2.0
# Checks that the declarations in src/comm/gloo_shim still fit the LibTorch found: everything that
# this library uses of ProcessGroupGloo compiles, links, and moves a tensor between two ranks.
# The result is kept in the cache for each LibTorch.

function(drivetrain_check_gloo_shim)
  set(key "${Torch_VERSION} ${TORCH_INSTALL_PREFIX}")
  file(GLOB_RECURSE sources ${PROJECT_SOURCE_DIR}/cmake/gloo_shim_check.cpp
    ${PROJECT_SOURCE_DIR}/src/comm/gloo_shim/*.h)
  foreach(source IN LISTS sources)
    file(MD5 ${source} sum)
    string(APPEND key " ${sum}")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  if(DRIVETRAIN_GLOO_SHIM_FITS STREQUAL key)
    return()
  endif()
  message(STATUS "Checking src/comm/gloo_shim against LibTorch ${Torch_VERSION}")
  set(shim ${PROJECT_SOURCE_DIR}/src/comm/gloo_shim)
  # By path: LibTorch's own targets name others that exist in this project's directory only.
  foreach(name IN ITEMS torch_cpu c10)
    find_library(library_${name} ${name} PATHS "${TORCH_INSTALL_PREFIX}/lib" NO_DEFAULT_PATH NO_CACHE)
    list(APPEND libraries ${library_${name}})
  endforeach()
  try_run(ran compiled ${CMAKE_CURRENT_BINARY_DIR}/gloo_shim_check
    ${PROJECT_SOURCE_DIR}/cmake/gloo_shim_check.cpp
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${shim};${TORCH_INCLUDE_DIRS}"
    COMPILE_DEFINITIONS -DUSE_DISTRIBUTED -DUSE_C10D_GLOO
    LINK_LIBRARIES ${libraries}
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
    COMPILE_OUTPUT_VARIABLE compile_output RUN_OUTPUT_VARIABLE run_output)
  if(NOT compiled OR NOT ran EQUAL 0)
    message(FATAL_ERROR "src/comm/gloo_shim does not fit LibTorch ${Torch_VERSION} in "
      "${TORCH_INSTALL_PREFIX}; allowed: 2.9 to 2.15; take one of those, or bring the "
      "declarations in line with that version's gloo (exit: ${ran})\n${compile_output}\n${run_output}")
  endif()
  set(DRIVETRAIN_GLOO_SHIM_FITS "${key}" CACHE INTERNAL "LibTorch that the gloo shim was run with")
endfunction()

if(CMAKE_CROSSCOMPILING)
  message(STATUS "Cross-compiling: src/comm/gloo_shim is not checked against LibTorch")
else()
  drivetrain_check_gloo_shim()
endif()
