# SPDX-License-Identifier: Apache-2.0
# find_package(drivetrain [COMPONENTS sim]): the target drivetrain::drivetrain, and drivetrain::sim,
# the simulated accelerator. LibTorch is found again here, so
# that the package can be moved and built against another one of the same version.
include(${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/drivetrainTargets.cmake)
target_link_libraries(drivetrain::drivetrain INTERFACE drivetrain_torch)
target_compile_features(drivetrain::drivetrain INTERFACE cxx_std_20)
set(drivetrain_sim_FOUND TRUE)
foreach(component IN LISTS drivetrain_FIND_COMPONENTS)
  if(NOT drivetrain_${component}_FOUND AND drivetrain_FIND_REQUIRED_${component})
    set(drivetrain_FOUND FALSE)
    set(drivetrain_NOT_FOUND_MESSAGE "drivetrain has no component ${component}; allowed: sim")
  endif()
endforeach()
