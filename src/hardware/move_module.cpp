// SPDX-License-Identifier: Apache-2.0
// Moving a module without replacing its tensors. Module::to breaks ties of storage, leaves
// gradients behind, and stops half-way when memory runs out; here all is copied first.
#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/text.h"

namespace drivetrain {

using core::str;

namespace {

using StorageKey = std::pair<const c10::StorageImpl*, at::ScalarType>;

StorageKey storage_key(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()};
}

// Parameters, their gradients and buffers, each object once.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      tensors.push_back(tensor);
  };
  for (const at::Tensor& parameter : module.parameters()) {
    add(parameter);
    add(parameter.grad());
  }
  for (const at::Tensor& buffer : module.buffers()) add(buffer);
  return tensors;
}

// Copies tensors to one device, those that share storage together.
class Mover {
 public:
  Mover(const std::vector<at::Tensor>& tensors, c10::Device device) : device_(device) {
    for (const at::Tensor& tensor : tensors)
      if (tensor.has_storage()) ++uses_[storage_key(tensor)];
  }

  at::Tensor copy(const at::Tensor& tensor) {
    if (!tensor.has_storage() || uses_[storage_key(tensor)] == 1)
      return tensor.detach().to(device_);
    at::Tensor& whole = moved_[storage_key(tensor)];
    if (!whole.defined()) {
      const auto length = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
      whole = tensor.detach().as_strided({length}, {1}, 0).to(device_);
    }
    return at::as_strided(whole, tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }

 private:
  c10::Device device_;
  std::map<StorageKey, int> uses_;
  std::map<StorageKey, at::Tensor> moved_;
};

bool is_compatible(const at::Tensor& tensor, const at::Tensor& moved) {
  return at::_has_compatible_shallow_copy_type(tensor, moved);
}

void check_can_become(const at::Tensor& tensor, const at::Tensor& moved) {
  if (is_compatible(tensor, moved)) return;
  const std::string what = core::str("a tensor of shape ", tensor.sizes(), " cannot change from ",
                                     tensor.device().str(), " to ", moved.device().str(), ": ");
  if (tensor.layout() != at::kStrided || !tensor.has_storage())
    throw HardwareError(what +
                        "it is not strided; allowed: dense tensors; create the module there");
  // The node that accumulates its gradient was made for the old device and stays so.
  if (tensor.is_leaf() && torch::autograd::impl::try_get_grad_accumulator(tensor))
    throw HardwareError(what +
                        "a graph still holds it; allowed: moving before the forward pass; "
                        "let its loss and outputs go first");
}

// `tensor` stays the object that it is and gets the contents of `moved`. LibTorch's set_data does
// that among its own devices, but keeps those of plugins and meta apart; their keys are switched
// here as LibTorch itself does for tensors that change their kind.
void become(const at::Tensor& tensor, const at::Tensor& moved) {
  if (is_compatible(tensor, moved)) return tensor.set_data(moved);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool allowed = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->_change_backend_component_keys(moved.device());
  impl->set_storage_keep_dtype(moved.storage());
  impl->set_sizes_and_strides(moved.sizes(), moved.strides(), moved.storage_offset());
  impl->set_allow_tensor_metadata_change(allowed);
}

c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.is_meta() || device.has_index()) return device;
  return c10::impl::getDeviceGuardImpl(device.type())->getDevice();
}

void move_tensors(const std::vector<at::Tensor>& tensors, c10::Device device) {
  std::vector<std::pair<at::Tensor, at::Tensor>> moves;
  Mover mover(tensors, device);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() == device) continue;
    moves.emplace_back(tensor, mover.copy(tensor));
    check_can_become(tensor, moves.back().second);
  }
  for (const auto& [tensor, moved] : moves) become(tensor, moved);
}

}  // namespace

void move_module_(torch::nn::Module& module, c10::Device device) {
  const at::NoGradGuard no_grad;
  try {
    move_tensors(tensors_of(module), with_index(device));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw HardwareError(str("the module could not be moved to ", device.str(), ": ",
                            error.what_without_backtrace(),
                            "; allowed: devices with is_available() and tensors with data; see the "
                            "reason"));
  }
}

}  // namespace drivetrain
