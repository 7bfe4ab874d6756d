# SPDX-License-Identifier: Apache-2.0
# With a LibTorch for CUDA: what needs its headers, which in turn need those of the CUDA runtime and
# of NCCL. They come from a toolkit, or from the wheels that LibTorch's own wheel brings; without
# them the library builds all the same, tensors on such devices travel through host memory, and what
# else is missing says so. Sets DRIVETRAIN_HAS_CUDA, DRIVETRAIN_HAS_NCCL.

set(DRIVETRAIN_HAS_CUDA OFF)
set(DRIVETRAIN_HAS_NCCL OFF)
set(cuda_library ${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so)
if(EXISTS ${cuda_library})
  file(GLOB wheels ${TORCH_INSTALL_PREFIX}/../nvidia/*/include)
  find_path(DRIVETRAIN_CUDA_INCLUDE cuda_runtime_api.h
    HINTS ${wheels} $ENV{CUDA_HOME}/include /usr/local/cuda/include
    DOC "The folder of CUDA's headers")
  find_path(DRIVETRAIN_NCCL_INCLUDE nccl.h
    HINTS ${wheels} $ENV{NCCL_HOME}/include /usr/local/cuda/include
    DOC "The folder of NCCL's headers")
  if(EXISTS ${DRIVETRAIN_CUDA_INCLUDE}/crt/host_config.h)
    set(DRIVETRAIN_HAS_CUDA ON)
  elseif(DRIVETRAIN_CUDA_INCLUDE)
    message(WARNING "CUDA's headers in ${DRIVETRAIN_CUDA_INCLUDE} are not whole (no "
      "crt/host_config.h), so CUDA's allocator and NCCL are left out; install the toolkit, or "
      "with pip: cuda-toolkit[crt,cccl]")
  endif()
  file(STRINGS ${cuda_library} nccl LIMIT_COUNT 1 REGEX "_ZTVN4c10d16ProcessGroupNCCLE")
  if(DRIVETRAIN_HAS_CUDA AND DRIVETRAIN_NCCL_INCLUDE AND nccl)
    set(DRIVETRAIN_HAS_NCCL ON)
  endif()
  message(STATUS "LibTorch for CUDA; headers of CUDA: ${DRIVETRAIN_CUDA_INCLUDE}, "
    "of NCCL: ${DRIVETRAIN_NCCL_INCLUDE}")
endif()

# drivetrain_cuda_sources(SOURCES...): sources of the library that include CUDA's headers.
function(drivetrain_cuda_sources)
  target_sources(drivetrain PRIVATE ${ARGN})
  target_link_libraries(drivetrain PRIVATE ${cuda_library} ${TORCH_INSTALL_PREFIX}/lib/libc10_cuda.so)
  set(options -isystem ${DRIVETRAIN_CUDA_INCLUDE} -DUSE_CUDA)
  if(DRIVETRAIN_HAS_NCCL)
    list(APPEND options -isystem ${DRIVETRAIN_NCCL_INCLUDE} -DUSE_C10D_NCCL)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${options}"
    SKIP_PRECOMPILE_HEADERS ON)
endfunction()
