// SPDX-License-Identifier: Apache-2.0
// The operation "grad_norm": the norm of a list of gradients and whether all of them are finite, in
// one pass, which may scale them as well. For clipping, and for taking a loss scale off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hardware/kernels/ranges.h"

namespace drivetrain::hardware::kernels {

struct GradNorm {
  double sum_of_squares = 0;     // infinite or NaN where found_inf
  bool found_inf = false;        // an element is infinite or NaN
  int64_t first_nonfinite = -1;  // the first tensor of the list with such an element

  double norm() const { return std::sqrt(sum_of_squares); }
};

// With a factor, every element is multiplied by it first, rounded to the tensor's type, and the
// result is that of the new values: an element that overflows counts as not finite.
//
// **Throws HardwareError if** a type, device or layout is not served, before anything is changed.
using GradNormKernel =
    std::function<GradNorm(const std::vector<at::Tensor>& tensors, std::optional<double> factor)>;

// Float, Half and BFloat16 tensors in host memory without gaps. Squares are added up in double, in
// an order that depends on the sizes of the tensors alone: the result is bit-equal whatever the
// loops and the number of threads.
GradNormKernel cpu_grad_norm(const Loops& loops);

// Whether cpu_grad_norm serves it.
bool is_served_by_cpu_grad_norm(const at::Tensor& tensor);

}  // namespace drivetrain::hardware::kernels
