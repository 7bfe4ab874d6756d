// SPDX-License-Identifier: Apache-2.0
// One pass over gradients: divided by the loss scale, and looked at for values that are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace drivetrain::precision {

// Multiplies each gradient by 1/scale in place. Returns the first, by its index, that has a value
// that is infinite or NaN, none if all are finite. Gradients on any devices; a sparse one by its
// values. Blocks for those on an accelerator.
std::optional<size_t> unscale(const std::vector<at::Tensor>& gradients, double scale);

}  // namespace drivetrain::precision
