// SPDX-License-Identifier: Apache-2.0
// Any operation of LibTorch, run by its CPU kernel on the stream of its device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

namespace drivetrain::sim {

// A tensor that an operation will return; without a dtype an undefined one.
struct Shape {
  std::optional<at::ScalarType> dtype;
  std::vector<int64_t> sizes = {}, strides = {};

  static Shape of(const at::Tensor& tensor);  // same dtype and layout; none if undefined
  static Shape contiguous(at::ScalarType dtype, std::vector<int64_t> sizes,
                          at::MemoryFormat format = at::MemoryFormat::Contiguous);
};

// The boxed kernel of every operation that has none of its own. Work goes to the current stream of
// the arguments' device. It returns at once where the shapes of the results are known beforehand:
// they are where the operation writes into its arguments, where LibTorch has a meta kernel, and
// where shapes.h knows; otherwise it waits. **Throws c10::Error if** the arguments are on several
// devices, or the CPU has no kernel.
void run_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// For kernels of our own: new tensors of these shapes on device `index`, that `kernel`'s results,
// CPU tensors, are copied into on the current stream. `arguments` are handed to it as CPU tensors.
using Kernel = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& arguments)>;
std::vector<at::Tensor> launch(const std::string& name, const std::vector<at::Tensor>& arguments,
                               const std::vector<Shape>& shapes, Kernel kernel);

}  // namespace drivetrain::sim
