// SPDX-License-Identifier: Apache-2.0
// The variables DRIVETRAIN_* that there are, and those set that are none of them.
#pragma once

#include <string>
#include <vector>

namespace drivetrain::config {

std::vector<std::string> known_variables();

// Those with another name of a setting: ACCELERATE_USE_CPU, ACCELERATE_DEBUG_MODE.
std::vector<std::string> other_names();

struct UnknownVariable {
  std::string name;
  std::string near;  // the known name that it resembles; "" if none
};

// Of `names`, those that begin with DRIVETRAIN_ and are not known.
std::vector<UnknownVariable> unknown_variables(const std::vector<std::string>& names);

}  // namespace drivetrain::config
