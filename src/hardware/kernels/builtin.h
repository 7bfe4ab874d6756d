// SPDX-License-Identifier: Apache-2.0
// The table of the kernels that come with the library.
#pragma once

#include <drivetrain/backends.h>

namespace drivetrain::kernels {

// "adam" (AdamKernel) and "grad_norm" (GradNormKernel) for "cpu": avx512, avx2 and scalar, of
// priority 30, 20 and 10. All three give the same bits. DRIVETRAIN_CPU_CAPABILITY makes the others
// incompatible.
void add_builtin_kernels(KernelRegistry& registry);

}  // namespace drivetrain::kernels
