// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <drivetrain/backends.h>

namespace drivetrain::sim {

class SimAccelerator final : public DeviceAccelerator {
 public:
  using DeviceAccelerator::DeviceAccelerator;

  static AcceleratorFacts row();  // of the registry's table

 protected:
  DeviceProperties do_properties(int index) const override;
  // Share of the time since the last call (at first: since load()) with a kernel running.
  double do_utilization(int index) const override;
  std::vector<MemoryBlock> do_memory_snapshot(int index) const override;
  void do_set_memory_fraction(double fraction, int index) const override;
};

}  // namespace drivetrain::sim
