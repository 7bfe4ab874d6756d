// SPDX-License-Identifier: Apache-2.0
// Copies between a device and the host that do not hold up the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace drivetrain::comm {

// The device of the first tensor that is not on the CPU; the CPU if there is none.
at::Device device_among(c10::ArrayRef<at::Tensor> tensors);

// Uninitialized host memory, page-locked where `device` has it.
at::Tensor host_buffer(c10::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

// Blocks until the copies begun from these tensors in the current streams are done.
void finish_copies_from(c10::ArrayRef<at::Tensor> tensors);

// A tensor's contents on the host, page-locked where there is such memory.
struct OnHost {
  at::Tensor tensor;
  std::function<void()> ready;  // Blocks until they are there.
};

// Copies behind the work now in the current stream of the tensor's device, on a stream beside it;
// at once where the device has no streams, and not at all from the CPU. `tensor` is contiguous, and
// untouched until ready().
OnHost copy_to_host(const at::Tensor& tensor);

// `tensor` itself where it is on the CPU, else host memory for its contents.
at::Tensor host_buffer_for(const at::Tensor& tensor);

// Back; nothing if they are the same.
void copy_to_device(const at::Tensor& tensor, const at::Tensor& host);

}  // namespace drivetrain::comm
