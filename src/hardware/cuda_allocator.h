// SPDX-License-Identifier: Apache-2.0
// What LibTorch's CUDA allocator does beyond its device-generic interface. Defined only where
// DRIVETRAIN_HAS_CUDA is (cmake/Cuda.cmake).
#pragma once

#include <drivetrain/hardware.h>

#include <vector>

namespace drivetrain::hardware {

void set_cuda_memory_fraction(double fraction, int index);
std::vector<MemoryBlock> cuda_live_blocks(int index);

}  // namespace drivetrain::hardware
