// SPDX-License-Identifier: Apache-2.0
// The built-in rows of the registry's table.
#pragma once

#include <drivetrain/hardware.h>

#include <string>
#include <string_view>
#include <vector>

namespace drivetrain::hardware {

struct Backend {
  AcceleratorFacts facts;
  AcceleratorFactory make;  // empty: DeviceAccelerator
};

// In the order of priority.
const std::vector<Backend>& builtin_backends();

// Requires: a built-in name.
const AcceleratorFacts& builtin_facts(std::string_view name);

// Facts to start from: of a device type of LibTorch's own, and of one that the PrivateUse1 plugin
// `plugin` brings. What the driver is known by comes from its row in facts/drivers.cpp, if any.
AcceleratorFacts native_facts(const std::string& name, c10::DeviceType type,
                              std::string communication, int priority);
AcceleratorFacts plugin_facts(const std::string& name, std::string communication, int priority,
                              const std::string& plugin);

template <class A>
std::shared_ptr<BaseAccelerator> make(const AcceleratorFacts& facts) {
  return std::make_shared<A>(facts);
}

}  // namespace drivetrain::hardware
