// SPDX-License-Identifier: Apache-2.0
// The built-in rows of the registry's table.
#pragma once

#include <drivetrain/hardware.h>

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

}  // namespace drivetrain::hardware
