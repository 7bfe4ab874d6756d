// SPDX-License-Identifier: Apache-2.0
// A counting layer over LibTorch's CPU allocator.
#pragma once

#include <drivetrain/hardware.h>

#include <cstdint>
#include <string>
#include <vector>

namespace drivetrain::hardware {

// Puts the layer in place on the first call; later ones only check that it still is. Memory
// allocated before is freed as it always was and not counted. "" or why it cannot count.
std::string install_counting_allocator();

// All zero before the layer is in place.
MemoryStats counted_memory();
void reset_counted_peak();
std::vector<MemoryBlock> counted_blocks();

// Allocations that would bring the counted bytes above `bytes` throw c10::OutOfMemoryError.
void limit_counted_memory(int64_t bytes);

}  // namespace drivetrain::hardware
