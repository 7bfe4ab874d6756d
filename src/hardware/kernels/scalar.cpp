// SPDX-License-Identifier: Apache-2.0
// The loops for any processor; the compiler may make vectors of what it knows to be there.
#include "hardware/kernels/loops.h"

namespace drivetrain::kernels {

const Loops kScalarLoops = {&adam_loop<One>, &squares_loop<One>, &scale_loop<One>};

}  // namespace drivetrain::kernels
