// SPDX-License-Identifier: Apache-2.0
// Where a batch's tensors lie.
#pragma once

#include <ATen/core/Tensor.h>

namespace drivetrain::data {

// Whether there is an accelerator whose copies gain from pinned memory.
bool can_pin();

// The tensor in pinned memory; requires can_pin().
at::Tensor pinned(const at::Tensor& tensor);

// The tensor on the device; does not wait for the copy where the tensor is pinned.
at::Tensor placed(const at::Tensor& tensor, at::Device device);

}  // namespace drivetrain::data
