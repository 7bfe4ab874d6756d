# SPDX-License-Identifier: Apache-2.0
# find_package(drivetrain): the target drivetrain::drivetrain. LibTorch is found again here, so
# that the package can be moved and built against another one of the same version.
include(${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/drivetrainTargets.cmake)
target_link_libraries(drivetrain::drivetrain INTERFACE drivetrain_torch)
target_compile_features(drivetrain::drivetrain INTERFACE cxx_std_20)
