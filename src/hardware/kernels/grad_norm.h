// SPDX-License-Identifier: Apache-2.0
// The operation "grad_norm": the norm of a list of gradients and whether all of them are finite, in
// one pass, which may scale them as well. For clipping, and for taking a loss scale off.
#pragma once

#include <drivetrain/backends.h>

#include "hardware/kernels/ranges.h"

namespace drivetrain::kernels {

// Float, Half and BFloat16 tensors in host memory without gaps. Squares are added up in double, in
// an order that depends on the sizes of the tensors alone: the result is bit-equal whatever the
// loops and the number of threads.
GradNormKernel cpu_grad_norm(const Loops& loops);

// Whether a kernel of this operation serves it on its device: Float, Half or BFloat16, the elements
// without gaps or overlap.
bool is_served_by_grad_norm(const at::Tensor& tensor);

}  // namespace drivetrain::kernels
