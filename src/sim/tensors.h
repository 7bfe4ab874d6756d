// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <vector>

namespace drivetrain::sim {

at::Tensor empty_on(int index, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype);

std::vector<int64_t> contiguous_strides(at::IntArrayRef sizes);

// Gives `tensor` the sizes and strides of `like` if its sizes differ; its storage grows if it must.
void fit_to(const at::Tensor& tensor, const at::Tensor& like);

// What makes, resizes and views tensors; copies and reads them; and the operations that LibTorch
// leaves to each accelerator.
void register_tensors(torch::Library& aten);
void register_copies(torch::Library& aten);
void register_kernels(torch::Library& aten);
void register_autocast(torch::Library& aten);

}  // namespace drivetrain::sim
