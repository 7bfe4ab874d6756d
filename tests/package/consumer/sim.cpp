// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/ones.h>
#include <drivetrain/hardware.h>
#include <drivetrain_sim/sim.h>

#include <iostream>

int main() {
  drivetrain::sim::load({.devices = 3});
  const auto accelerator = drivetrain::make_accelerator("sim");
  accelerator->set_device(2);
  const auto x = at::ones({4}, accelerator->get_current_device());
  std::cout << "sum " << x.sum().item<float>() << " on " << x.device() << "\n";
}
