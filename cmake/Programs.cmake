# SPDX-License-Identifier: Apache-2.0
# One precompiled torch/torch.h for tests, examples and benchmarks, and the functions that use it.

find_package(GTest QUIET)
add_library(drivetrain_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(drivetrain_pch PRIVATE drivetrain drivetrain_warnings)
target_precompile_headers(drivetrain_pch PRIVATE <torch/torch.h>)
# As executables are compiled, or GCC would not take the header.
set_target_properties(drivetrain_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(drivetrain_pch PRIVATE -fPIE)

# drivetrain_program(NAME SOURCES...): a program of a user: public headers and torch/torch.h.
function(drivetrain_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE drivetrain drivetrain_warnings)
  target_precompile_headers(${name} REUSE_FROM drivetrain_pch)
endfunction()
