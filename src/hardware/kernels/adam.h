// SPDX-License-Identifier: Apache-2.0
// The operation "adam": one step of Adam or AdamW on a list of tensors.
#pragma once

#include <drivetrain/backends.h>

#include "hardware/kernels/ranges.h"

namespace drivetrain::kernels {

// The kernel over `loops`, for tensors in host memory without gaps. Bit-equal whatever the loops
// and the number of threads.
AdamKernel cpu_adam(const Loops& loops);

}  // namespace drivetrain::kernels
