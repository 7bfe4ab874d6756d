# SPDX-License-Identifier: Apache-2.0
# Language level, warnings, sanitizers, and the tools that make building fast.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# The build type Dev (CMakePresets.json gives its flags) keeps assertions on.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  find_program(CCACHE ccache)
  if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Precompiled headers need this sloppiness to be cached; paths below the tree count as relative,
    # so that one clone's results serve the next.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE})
  endif()
  find_program(MOLD mold)
  if(MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
  # Two compilers at once: one that includes LibTorch takes over 1 GB.
  set_property(GLOBAL PROPERTY JOB_POOLS compile=2 link=2)
  set(CMAKE_JOB_POOL_COMPILE compile)
  set(CMAKE_JOB_POOL_LINK link)
endif()

if(DRIVETRAIN_SANITIZE)
  add_compile_options(-fsanitize=${DRIVETRAIN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DRIVETRAIN_SANITIZE})
  if(DRIVETRAIN_SANITIZE STREQUAL thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Standard headers use fences, which the thread sanitizer does not follow; -Werror would end it.
    add_compile_options(-Wno-tsan)
  endif()
endif()

# Warnings for our own code only.
add_library(drivetrain_warnings INTERFACE)
target_compile_options(drivetrain_warnings INTERFACE -Wall -Wextra -Wpedantic -Werror
  -Wno-unknown-pragmas)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 reports its own std::string as overlapping (GCC bug 105651), at -O2 and above.
  target_compile_options(drivetrain_warnings INTERFACE -Wno-restrict)
endif()
