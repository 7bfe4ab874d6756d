// SPDX-License-Identifier: Apache-2.0
// Shapes of results where LibTorch has no meta kernel in C++.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/operation.h"

namespace drivetrain::sim {

// One for each result; none if the operation is not known here, and so has to be waited for.
std::optional<std::vector<Shape>> known_shapes(const std::string& name,
                                               const std::vector<c10::IValue>& arguments);

}  // namespace drivetrain::sim
