// SPDX-License-Identifier: Apache-2.0
// Each device's random numbers: a seed, and an offset that every drawing operation moves by one.
// Operations take their offset when they are called, not when their stream gets to them, so what
// they draw does not depend on timing.
#pragma once

#include <ATen/core/Generator.h>

namespace drivetrain::sim {

const at::Generator& default_generator(int index);  // -1: of the current device
at::Generator new_generator(int index);

// A CPU generator for one operation on device `index`, from `given` or, if that is none or not
// defined, from the device's own. **Throws c10::Error if** `given` is of another device.
at::Generator draw(int index, const std::optional<at::Generator>& given);

}  // namespace drivetrain::sim
