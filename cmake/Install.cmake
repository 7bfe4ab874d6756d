# SPDX-License-Identifier: Apache-2.0
# `cmake --install` and `find_package(drivetrain)`.
include(CMakePackageConfigHelpers)

set(DRIVETRAIN_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/drivetrain)

# By name: CMake's own list of linked folders leaves out a LibTorch below the source tree.
set_target_properties(drivetrain drivetrain_sim PROPERTIES
  INSTALL_RPATH "$ORIGIN;${TORCH_INSTALL_PREFIX}/lib")
install(TARGETS drivetrain drivetrain_sim EXPORT drivetrain)
install(DIRECTORY include/drivetrain include/drivetrain_sim DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT drivetrain NAMESPACE drivetrain:: FILE drivetrainTargets.cmake
  DESTINATION ${DRIVETRAIN_PACKAGE_DIR})
write_basic_package_version_file(drivetrainConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/drivetrainConfig.cmake.in drivetrainConfig.cmake @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/drivetrainConfig.cmake cmake/LibTorch.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/drivetrainConfigVersion.cmake DESTINATION ${DRIVETRAIN_PACKAGE_DIR})
