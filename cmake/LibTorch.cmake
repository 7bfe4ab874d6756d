# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch: Torch_DIR or CMAKE_PREFIX_PATH, then the one that an installed Drivetrain was built
# with (DRIVETRAIN_BUILT_WITH), then the `torch` of a Python environment (the active python3, then
# the one that ./dev keeps under build/python). Checks that it is
# new enough, of the C++11 ABI, and has c10d. Defines the target drivetrain_torch.

set(DRIVETRAIN_TORCH_MINIMUM 2.9)

# Sets `out` to the CMake prefix of the torch package that `python` would import, or "".
function(drivetrain_torch_of_python python out)
  set(${out} "" PARENT_SCOPE)
  if(NOT EXISTS "${python}")
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.join(os.path.dirname(s.origin), 'share', 'cmake') if s and s.origin else '')"
    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${prefix}" PARENT_SCOPE)
endfunction()

# Sets Torch_DIR to the folder of TorchConfig.cmake that find_package(Torch) would take, then that of
# a Python environment. The file itself is not run: for a CUDA LibTorch it insists on the CUDA toolkit,
# which nothing here needs, and it forces its flags on every user.
macro(drivetrain_find_torch)
  foreach(given IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(given AND NOT EXISTS "${given}/TorchConfig.cmake")
      message(FATAL_ERROR "Torch_DIR is \"${given}\", where there is no TorchConfig.cmake; allowed: "
        "<LibTorch>/share/cmake/Torch; correct it, or unset it (-U Torch_DIR) to have one looked for")
    endif()
  endforeach()
  if(NOT Torch_DIR)
    unset(Torch_DIR CACHE)
    file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes)
    find_path(Torch_DIR TorchConfig.cmake
      HINTS $ENV{Torch_DIR} ${CMAKE_PREFIX_PATH} ${prefixes} PATH_SUFFIXES share/cmake/Torch Torch
      DOC "The folder of LibTorch's TorchConfig.cmake")
    find_path(Torch_DIR TorchConfig.cmake PATHS "${DRIVETRAIN_BUILT_WITH}" NO_DEFAULT_PATH)
    find_program(DRIVETRAIN_PYTHON3 python3)
    foreach(python IN ITEMS "${DRIVETRAIN_PYTHON3}" "${PROJECT_SOURCE_DIR}/build/python/bin/python3")
      if(NOT Torch_DIR)
        drivetrain_torch_of_python("${python}" cmake_prefix)
        find_path(Torch_DIR TorchConfig.cmake PATHS "${cmake_prefix}/Torch" NO_DEFAULT_PATH)
      endif()
    endforeach()
  endif()
  if(Torch_DIR)
    include(${Torch_DIR}/TorchConfigVersion.cmake)
    set(Torch_VERSION ${PACKAGE_VERSION})
    get_filename_component(TORCH_INSTALL_PREFIX "${Torch_DIR}/../../.." ABSOLUTE)
    set(TORCH_INCLUDE_DIRS ${TORCH_INSTALL_PREFIX}/include
      ${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include)
  endif()
endmacro()

# Stops with one clear message where the LibTorch found cannot serve.
function(drivetrain_check_torch)
  if(NOT Torch_DIR)
    message(FATAL_ERROR "LibTorch was not found; allowed: ${DRIVETRAIN_TORCH_MINIMUM} or newer; "
      "pass -DTorch_DIR=<prefix>/share/cmake/Torch, or pip install torch (as ./dev build does)")
  endif()
  if(Torch_VERSION VERSION_LESS DRIVETRAIN_TORCH_MINIMUM)
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR} is too old; allowed: "
      "${DRIVETRAIN_TORCH_MINIMUM} or newer; install a newer one or point Torch_DIR at it")
  endif()
  # Its C++ interface is another in each minor version.
  string(REGEX MATCH "^[0-9]+[.][0-9]+" minor "${Torch_VERSION}")
  if(DRIVETRAIN_BUILT_WITH_VERSION AND NOT DRIVETRAIN_BUILT_WITH_VERSION MATCHES "^${minor}[.]")
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR} is not the one that Drivetrain was "
      "built with, ${DRIVETRAIN_BUILT_WITH_VERSION} in ${DRIVETRAIN_BUILT_WITH}; allowed: the same "
      "minor version; point Torch_DIR at it, or build Drivetrain with this one")
  endif()
  set(prefix "${TORCH_INSTALL_PREFIX}")
  find_library(DRIVETRAIN_C10 c10 PATHS "${prefix}/lib" NO_DEFAULT_PATH NO_CACHE)
  if(DRIVETRAIN_C10)
    file(STRINGS "${DRIVETRAIN_C10}" cxx11 LIMIT_COUNT 1 REGEX "_ZN3c105Error.*NSt7__cxx1112basic_string")
  endif()
  if(NOT cxx11)
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR} was built with the old C++ ABI; "
      "allowed: _GLIBCXX_USE_CXX11_ABI=1; take the cxx11-abi build, or the PyPI wheel of 2.9 or newer")
  endif()
  if(NOT EXISTS "${prefix}/include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp")
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR} lacks c10d; allowed: a build with "
      "USE_DISTRIBUTED=1 and USE_GLOO=1; take the PyPI wheel")
  endif()
endfunction()

drivetrain_find_torch()
drivetrain_check_torch()
message(STATUS "LibTorch ${Torch_VERSION}: ${TORCH_INSTALL_PREFIX}")

# The library for each kind of device registers itself when it is loaded, so it must be linked though
# nothing names what is in it; `torch` needs those that this LibTorch has.
set(torch_lib ${TORCH_INSTALL_PREFIX}/lib)
set(dll ${CMAKE_SHARED_LIBRARY_SUFFIX})
add_library(drivetrain_torch INTERFACE)
target_include_directories(drivetrain_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(drivetrain_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(drivetrain_torch INTERFACE
  "-Wl,--no-as-needed,\"${torch_lib}/libtorch${dll}\" -Wl,--as-needed"
  ${torch_lib}/libtorch${dll} ${torch_lib}/libtorch_cpu${dll} ${torch_lib}/libc10${dll})
