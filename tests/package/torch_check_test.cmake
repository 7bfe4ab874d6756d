# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=... -DMODULE=... -DSCRATCH=... -P torch_check_test.cmake
# Every LibTorch that cannot serve is refused with the reason, by one message.

# Writes a LibTorch of `version` whose libc10.so holds `symbols`; leaves its path in `torch`.
function(fake_torch name version symbols)
  set(prefix ${SCRATCH}/${name})
  file(WRITE ${prefix}/share/cmake/Torch/TorchConfig.cmake
    "set(TORCH_INSTALL_PREFIX ${prefix})\nset(Torch_FOUND TRUE)\n")
  file(WRITE ${prefix}/share/cmake/Torch/TorchConfigVersion.cmake
    "set(PACKAGE_VERSION ${version})\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  file(WRITE ${prefix}/lib/libc10.so "${symbols}\n")
  set(torch ${prefix}/share/cmake/Torch PARENT_SCOPE)
endfunction()

function(expect_refusal name torch_dir text)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=Torch_DIR --unset=CMAKE_PREFIX_PATH
      ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${SCRATCH}/build-${name} -DMODULE=${MODULE}
      -DTorch_DIR=${torch_dir} -DDRIVETRAIN_PYTHON3=${SCRATCH}/no-python ${ARGN}
      -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  string(FIND "${output}" "${text}" at)
  if(result EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "${name}: expected a refusal with \"${text}\", got (${result}):\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
expect_refusal(wrong ${SCRATCH}/nowhere "nowhere\", where there is no TorchConfig.cmake; allowed:")
expect_refusal(absent "" "LibTorch was not found; allowed: 2.9 or newer; pass -DTorch_DIR=")
fake_torch(old 2.8.0 "")
expect_refusal(old ${torch} "is too old; allowed: 2.9 or newer")
fake_torch(other 2.12.1 "")
expect_refusal(other ${torch} "LibTorch 2.12.1 in ${torch} is not the one that Drivetrain was built with, 2.13.0 in there; allowed: the same minor version"
  -DDRIVETRAIN_BUILT_WITH=there -DDRIVETRAIN_BUILT_WITH_VERSION=2.13.0)
fake_torch(abi 2.13.0 "_ZN3c105ErrorC1ENS_14SourceLocationESs")
expect_refusal(abi ${torch} "was built with the old C++ ABI; allowed: _GLIBCXX_USE_CXX11_ABI=1")
fake_torch(lonely 2.13.0
  "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE")
expect_refusal(lonely ${torch} "lacks c10d; allowed: a build with USE_DISTRIBUTED=1 and USE_GLOO=1")
