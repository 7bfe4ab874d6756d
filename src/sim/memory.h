// SPDX-License-Identifier: Apache-2.0
// The allocators that LibTorch sees: of device memory and of page-locked host memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <optional>

#include "sim/pool.h"

namespace drivetrain::sim {

Pool& pool(int index);
c10::DeviceAllocator* device_allocator();

// The device that an address belongs to; none if it is not device memory.
std::optional<int> device_of(const void* address);
// Where kernels find what tensors know as `address`. **Throws c10::Error if** it is not device
// memory. Null stays null.
void* of_kernels(const void* address);

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

}  // namespace drivetrain::sim
