// SPDX-License-Identifier: Apache-2.0
// Where the tests of a room put their tensors and models: on the accelerator that
// DRIVETRAIN_ACCELERATOR names, or the CPU. A room's program runs twice, on the CPU and on
// simulated devices, one for each rank; on another accelerator ranks share the devices that there
// are. Numbers are drawn and tensors are made on the CPU and then moved, so they are the same
// everywhere.
#pragma once

#include <drivetrain/hardware.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdlib>
#include <memory>
#include <utility>

namespace drivetrain::here {

// The accelerator of this run.
inline BaseAccelerator& accelerator() {
  static const std::shared_ptr<BaseAccelerator> instance = [] {
    const char* name = std::getenv("DRIVETRAIN_ACCELERATOR");
    return make_accelerator(name != nullptr ? name : "cpu");
  }();
  return *instance;
}

inline bool is_cpu() { return accelerator().device_type() == c10::kCPU; }

inline thread_local int rank_of_thread = 0;

// The device of the calling thread's rank.
inline at::Device device() {
  if (is_cpu()) return {c10::kCPU};
  static const int count = accelerator().device_count();
  return {accelerator().device_type(), static_cast<c10::DeviceIndex>(rank_of_thread % count)};
}

// What a rank does first: takes the device of its number.
inline void take_rank(int rank) {
  rank_of_thread = rank;
  if (!is_cpu()) accelerator().set_device(device());
}

// On this rank's device; a leaf stays one.
inline at::Tensor moved(const at::Tensor& tensor) {
  if (tensor.device() == device()) return tensor;
  return tensor.detach().to(device()).requires_grad_(tensor.requires_grad());
}

template <class Module>
  requires requires(Module& module) { std::declval<Module&>()->parameters(); }
Module moved(Module module) {
  move_module_(*module, device());
  return module;
}

inline at::Tensor ones(at::IntArrayRef size, at::TensorOptions options = {}) {
  return moved(torch::ones(size, options));
}
inline at::Tensor zeros(at::IntArrayRef size, at::TensorOptions options = {}) {
  return moved(torch::zeros(size, options));
}
inline at::Tensor full(at::IntArrayRef size, const at::Scalar& value,
                       at::TensorOptions options = {}) {
  return moved(torch::full(size, value, options));
}
inline at::Tensor randn(at::IntArrayRef size, at::TensorOptions options = {}) {
  return moved(torch::randn(size, options));
}
inline at::Tensor randint(int64_t high, at::IntArrayRef size, at::TensorOptions options = {}) {
  return moved(torch::randint(high, size, options));
}
inline at::Tensor arange(const at::Scalar& end, at::TensorOptions options = {}) {
  return moved(torch::arange(end, options));
}
inline at::Tensor eye(int64_t n, at::TensorOptions options = {}) {
  return moved(torch::eye(n, options));
}
inline at::Tensor scalar_tensor(const at::Scalar& value, at::TensorOptions options = {}) {
  return moved(torch::scalar_tensor(value, options));
}
inline at::Tensor tensor(torch::detail::TensorDataContainer data, at::TensorOptions options = {}) {
  return moved(torch::tensor(std::move(data), options));
}

}  // namespace drivetrain::here
