// SPDX-License-Identifier: Apache-2.0
// What a MixedPrecisionPolicy makes of a model when it is prepared.
#pragma once

#include <drivetrain/precision.h>

#include <string>
#include <utility>
#include <vector>

namespace drivetrain::precision {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Throws std::invalid_argument if a type is not served or two settings contradict each other.
void check(const MixedPrecisionPolicy& policy, MixedPrecision autocast);

// A parameter that is kept in 16 bits, and the float32 values that it is rounded from.
struct Master {
  std::string name;
  at::Tensor parameter;
  at::Tensor value;  // requires no gradient; shares memory with others as the parameters did
};

// Converts parameters and buffers in place: they stay the objects that they are, and what shares
// memory still does. Returns those parameters that have become 16-bit ones, or were, each once.
// Throws std::invalid_argument if one shares its memory with a tensor of another type.
std::vector<Master> convert_(const NamedTensors& parameters, const NamedTensors& buffers,
                             const MixedPrecisionPolicy& policy);

}  // namespace drivetrain::precision
