// SPDX-License-Identifier: Apache-2.0
// Apple's GPUs: their memory is told by LibTorch's MPS hooks, not by a DeviceAllocator.
#include <ATen/detail/MPSHooksInterface.h>
#include <drivetrain/backends.h>

#include <algorithm>

#include "hardware/table.h"

namespace drivetrain {

MpsAccelerator::MpsAccelerator() : MpsAccelerator(hardware::builtin_facts("mps")) {}
MpsAccelerator::MpsAccelerator(AcceleratorFacts facts) : DeviceAccelerator(std::move(facts)) {}

void MpsAccelerator::do_empty_cache() const { at::detail::getMPSHooks().emptyCache(); }

MemoryStats MpsAccelerator::do_memory_stats(int) const {
  MemoryStats stats;
  stats.allocated_bytes.current =
      static_cast<int64_t>(at::detail::getMPSHooks().getCurrentAllocatedMemory());
  stats.reserved_bytes.current =
      static_cast<int64_t>(at::detail::getMPSHooks().getDriverAllocatedMemory());
  return stats;
}

void MpsAccelerator::do_reset_peaks(int) const {
  unsupported("reset_peak_memory_stats", "it records no peaks");
}

void MpsAccelerator::do_set_memory_fraction(double fraction, int) const {
  at::detail::getMPSHooks().setMemoryFraction(fraction);
}

std::pair<int64_t, int64_t> MpsAccelerator::do_memory_info(int index) const {
  const auto total = static_cast<int64_t>(at::detail::getMPSHooks().getRecommendedMaxMemory());
  const int64_t reserved = do_memory_stats(index).reserved_bytes.current;
  return {std::max<int64_t>(total - reserved, 0), total};
}

namespace hardware {

Backend mps_backend() {
  AcceleratorFacts facts = native_facts("mps", c10::DeviceType::MPS, "gloo", 40);
  facts.capabilities.set_device = false;
  facts.capabilities.memory_peaks = false;
  facts.capabilities.memory_fraction = true;
  facts.capabilities.pinned_memory = false;
  return {facts, make<MpsAccelerator>};
}

}  // namespace hardware
}  // namespace drivetrain
