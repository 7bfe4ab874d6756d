// SPDX-License-Identifier: Apache-2.0
#include "hardware/cuda_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>

namespace drivetrain::hardware {

namespace allocator = c10::cuda::CUDACachingAllocator;

void set_cuda_memory_fraction(double fraction, int index) {
  allocator::init(static_cast<c10::DeviceIndex>(index + 1));
  allocator::setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(index));
}

std::vector<MemoryBlock> cuda_live_blocks(int index) {
  std::vector<MemoryBlock> blocks;
  if (!allocator::get()->initialized()) return blocks;
  for (const auto& segment : allocator::snapshot().segments) {
    if (segment.device != index) continue;
    uint64_t address = segment.address;
    for (const auto& block : segment.blocks) {
      if (block.allocated) blocks.push_back({address, static_cast<int64_t>(block.requested_size)});
      address += block.size;
    }
  }
  return blocks;
}

}  // namespace drivetrain::hardware
