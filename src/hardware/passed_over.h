// SPDX-License-Identifier: Apache-2.0
// What is said where detection passes over hardware that is there.
#pragma once

#include <drivetrain/hardware.h>

#include <string>
#include <vector>

namespace drivetrain::hardware {

struct PassedOver {
  AcceleratorFacts facts;
  std::string reason;
};

// One warning in the life of a process: which driver or devices are there, why they are not used,
// and what to do. Silent where this machine shows nothing of these backends, and where the user has
// hidden all devices with the backend's own variable.
void warn_of_passed_over(const std::vector<PassedOver>& backends, const std::string& chosen);

}  // namespace drivetrain::hardware
