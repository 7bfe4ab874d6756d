// SPDX-License-Identifier: Apache-2.0
#include "data/place.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

namespace drivetrain::data {

bool can_pin() {
  const auto type = at::getAccelerator(/*checked=*/false);
  return type && at::globalContext().getAcceleratorHooksInterface(type).isAvailable();
}

at::Tensor pinned(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() ? tensor.pin_memory() : tensor;
}

at::Tensor placed(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  const bool non_blocking = tensor.is_cpu() && can_pin() && tensor.is_pinned();
  return tensor.to(tensor.options().device(device), non_blocking);
}

}  // namespace drivetrain::data
