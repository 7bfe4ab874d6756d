// SPDX-License-Identifier: Apache-2.0
// Moving a module without replacing its tensors. Module::to breaks ties of storage, leaves
// gradients behind, and stops half-way when memory runs out; here all is copied first.
#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"

namespace drivetrain {

using core::str;

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Named tensors with their gradients, each object once.
NamedTensors with_gradients(const NamedTensors& named) {
  NamedTensors tensors;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](std::string name, const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      tensors.emplace_back(std::move(name), tensor);
  };
  for (const auto& [name, tensor] : named) {
    add(name, tensor);
    if (tensor.defined() && tensor.is_leaf()) add("the gradient of " + name, tensor.grad());
  }
  return tensors;
}

// The elements as they lie in memory: a tensor that says "conjugated" or "negated" still will after
// the move.
at::Tensor as_written(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  plain._set_conj(false);
  plain._set_neg(false);
  return plain;
}

// Copies tensors to one device, those that share storage together.
class Mover {
 public:
  Mover(const NamedTensors& tensors, c10::Device device) : device_(device) {
    for (const auto& [name, tensor] : tensors)
      if (tensor.has_storage()) ++uses_[tensor.storage().unsafeGetStorageImpl()];
  }

  at::Tensor copy(const at::Tensor& tensor) {
    if (!tensor.has_storage() || uses_[tensor.storage().unsafeGetStorageImpl()] == 1)
      return as_written(tensor).to(device_);
    at::Tensor& whole = moved_[tensor.storage().unsafeGetStorageImpl()];
    // Bytes, as not all that share them need be of one type: view_as_real(weight).
    if (!whole.defined())
      whole = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false))
                  .set_(tensor.storage())
                  .to(device_);
    return at::empty({0}, tensor.options().device(device_).requires_grad(false))
        .set_(whole.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  }

 private:
  c10::Device device_;
  std::map<const c10::StorageImpl*, int> uses_;
  std::map<const c10::StorageImpl*, at::Tensor> moved_;
};

bool is_compatible(const at::Tensor& tensor, const at::Tensor& moved) {
  return at::_has_compatible_shallow_copy_type(tensor, moved);
}

void check_can_become(const std::string& name, const at::Tensor& tensor, const at::Tensor& moved) {
  if (is_compatible(tensor, moved)) return;
  const std::string what = core::str(name, " of shape ", tensor.sizes(), " cannot change from ",
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
  if (is_compatible(tensor, moved)) {
    moved._set_conj(tensor.is_conj());
    moved._set_neg(tensor.is_neg());
    return tensor.set_data(moved);
  }
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

void move_all(const NamedTensors& tensors, c10::Device device) {
  std::vector<std::pair<at::Tensor, at::Tensor>> moves;
  Mover mover(tensors, device);
  for (const auto& [name, tensor] : tensors) {
    if (tensor.device() == device) continue;
    moves.emplace_back(tensor, mover.copy(tensor));
    check_can_become(name, tensor, moves.back().second);
  }
  for (const auto& [tensor, moved] : moves) become(tensor, moved);
}

}  // namespace

void move_tensors_(const NamedTensors& named, c10::Device device) {
  const at::NoGradGuard no_grad;
  try {
    move_all(with_gradients(named), with_index(device));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw HardwareError(str("the module could not be moved to ", device.str(), ": ",
                            error.what_without_backtrace(),
                            "; allowed: devices with is_available() and tensors with data; see the "
                            "reason"));
  }
}

void move_module_(torch::nn::Module& module, c10::Device device) {
  NamedTensors named;
  for (const auto& item : module.named_parameters())
    named.emplace_back("parameter " + item.key(), item.value());
  for (const auto& item : module.named_buffers())
    named.emplace_back("buffer " + item.key(), item.value());
  move_tensors_(named, device);
}

}  // namespace drivetrain
