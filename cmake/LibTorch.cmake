# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch: Torch_DIR or CMAKE_PREFIX_PATH, then the `torch` of a Python environment
# (the active python3, then the one that ./dev keeps under build/python). Checks that it is
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

# Where this is an installed package looking for its dependency, only CMake's own search is used.
macro(drivetrain_find_torch)
  set(_saved_warn_deprecated "${CMAKE_WARN_DEPRECATED}")
  set(CMAKE_WARN_DEPRECATED OFF)
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    find_program(DRIVETRAIN_PYTHON3 python3)
    foreach(python IN ITEMS "${DRIVETRAIN_PYTHON3}" "${PROJECT_SOURCE_DIR}/build/python/bin/python3")
      drivetrain_torch_of_python("${python}" torch_prefix)
      if(torch_prefix AND NOT Torch_FOUND)
        find_package(Torch QUIET PATHS "${torch_prefix}/Torch" NO_DEFAULT_PATH)
      endif()
    endforeach()
  endif()
  set(CMAKE_WARN_DEPRECATED "${_saved_warn_deprecated}")
endmacro()

# Stops with one clear message where the LibTorch found cannot serve.
function(drivetrain_check_torch)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR "LibTorch was not found; allowed: ${DRIVETRAIN_TORCH_MINIMUM} or newer; "
      "run ./dev build (it installs one), or pass -DTorch_DIR=<prefix>/share/cmake/Torch")
  endif()
  if(Torch_VERSION VERSION_LESS DRIVETRAIN_TORCH_MINIMUM)
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR} is too old; allowed: "
      "${DRIVETRAIN_TORCH_MINIMUM} or newer; install a newer one or point Torch_DIR at it")
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

# Plain targets: Caffe2's own would force their flags on every user.
add_library(drivetrain_torch INTERFACE)
target_include_directories(drivetrain_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(drivetrain_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(drivetrain_torch INTERFACE ${TORCH_LIBRARIES})
