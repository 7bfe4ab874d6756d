# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=... -DCONSUMER=... -DSCRATCH=... -P install_test.cmake
# Installs, moves the package elsewhere, and builds and runs an outside project against it.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/first)
file(RENAME ${SCRATCH}/first ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${CONSUMER} -B ${SCRATCH}/build -DCMAKE_BUILD_TYPE=Debug
  -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)  # It finds the LibTorch of the build by itself.
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/prefix/bin/drivetrain launch --cpu --num-processes 2 ${SCRATCH}/build/consumer)
if(NOT output MATCHES "processes 2")
  message(FATAL_ERROR "the outside project printed:\n${output}")
endif()
run(${SCRATCH}/prefix/bin/drivetrain --version)
# The command finds its helper, and that the library and LibTorch, after the move.
run(${SCRATCH}/prefix/bin/drivetrain env)
if(NOT output MATCHES "libexec/drivetrain/drivetrain-probe" OR NOT output MATCHES "state +answered")
  message(FATAL_ERROR "drivetrain env printed:\n${output}")
endif()

# The simulated accelerator: linked, by the environment, and where it is not installed.
run(${SCRATCH}/build/consumer_sim)
if(NOT output MATCHES "sum 4 on sim:2")
  message(FATAL_ERROR "the outside project with simulated devices printed:\n${output}")
endif()
set(ENV{DRIVETRAIN_ACCELERATOR} sim)
run(${SCRATCH}/build/consumer)
file(GLOB_RECURSE libraries ${SCRATCH}/prefix/libdrivetrain_sim.so*)
file(REMOVE ${libraries})
execute_process(COMMAND ${SCRATCH}/build/consumer RESULT_VARIABLE result ERROR_VARIABLE errors)
if(result EQUAL 0 OR NOT errors MATCHES "DRIVETRAIN_ACCELERATOR=sim asks for libdrivetrain_sim.so.0, which cannot be loaded")
  message(FATAL_ERROR "without the library the outside project ended with ${result}:\n${errors}")
endif()
